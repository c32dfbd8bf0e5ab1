-- Take somebody offline in a sorted set of ids by last-seen time, or erase them.
--
-- The departure may have waited for a server that was away. So whoever was seen after it stays.
--
-- KEYS[1]  the sorted set
-- KEYS[2]  who left: id by the moment of leaving
-- KEYS[3]  who was erased: SHA-1 of an id by the moment of erasing
-- KEYS[4]  who is gone: id by last-seen time
-- KEYS[5]  which processes wrote, as in sorted_set.lua
-- ARGV     as in departing.lua, which stands before this
--
-- Reply: the moment at which it counts as departed.

local seen, left, forgotten, gone, writers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local last_seen = redis.call('ZSCORE', seen, id)
local is_there = last_seen and tonumber(last_seen) <= tonumber(moment)
if is_there then
  redis.call('ZREM', seen, id)
  if redis.call('EXISTS', seen) == 0 then
    redis.call('ZREM', writers, '') -- it is empty, and nothing is lost
  end
end
local departures, member = left, id
if hash ~= '' then
  redis.call('ZREM', left, id)
  redis.call('ZREM', gone, id)
  departures, member = forgotten, hash
elseif is_there then
  note(gone, id, last_seen, kept)
end
redis.call('ZREMRANGEBYSCORE', departures, '-inf', tonumber(moment) - matters)
note(departures, member, moment, math.ceil(matters))
return moment
