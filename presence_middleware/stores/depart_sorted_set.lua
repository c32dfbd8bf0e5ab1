-- Take somebody offline in a sorted set of ids by last-seen time, or erase them.
--
-- The departure may have waited for a server that was away. So whoever was seen after it stays.
--
-- KEYS[1]  the sorted set
-- KEYS[2]  who left: id by the moment of leaving
-- KEYS[3]  who was erased: SHA-1 of an id by the moment of erasing
-- KEYS[4]  who is gone: id by last-seen time
-- KEYS[5]  which processes wrote, as in sorted_set.lua
-- ARGV[1]  the id
-- ARGV[2]  the moment
-- ARGV[3]  1 if that is at most now by this server's clock; else 0
-- ARGV[4]  seconds for which departures matter
-- ARGV[5]  seconds for which last-seen times are kept
-- ARGV[6]  how many members each key may have
-- ARGV[7]  SHA-1 of the id to erase it; empty to take it offline
--
-- Reply: the moment at which it counts as departed.

local seen, left, forgotten, gone, writers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, moment, has_server_time = ARGV[1], ARGV[2], ARGV[3] == '1'
local matters, kept, most, hash = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]

if has_server_time then
  local time = redis.call('TIME')
  local now = time[1] .. '.' .. string.format('%06d', time[2])
  if tonumber(moment) > tonumber(now) then
    moment = now
  end
end

local function note(key, member, score, lifetime)
  redis.call('ZADD', key, 'GT', score, member)
  redis.call('EXPIRE', key, lifetime)
  local excess = redis.call('ZCARD', key) - most
  if excess > 0 then
    redis.call('ZREMRANGEBYRANK', key, 0, excess - 1)
  end
end

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
