-- Take somebody offline in the sets of the ids of each minute, or erase them.
--
-- As in depart_sorted_set.lua, whoever was seen in a later minute stays.
--
-- KEYS[1]   who left: id by the moment of leaving
-- KEYS[2]   who was erased: SHA-1 of an id by the moment of erasing
-- KEYS[3]   who is gone: id by the minute of the last sighting
-- KEYS[4…]  the sets, the earliest first
-- ARGV[1…7] as in departing.lua, which stands before this
-- ARGV[8]   when the first of the minutes began
--
-- Reply: the moment at which it counts as departed.

local left, forgotten, gone = KEYS[1], KEYS[2], KEYS[3]
local first = tonumber(ARGV[8])

local last_seen = false
for i = 4, #KEYS do
  local began = first + (i - 4) * 60
  if began <= tonumber(moment) and redis.call('SREM', KEYS[i], id) == 1 then
    last_seen = began
  end
end
local departures, member = left, id
if hash ~= '' then
  redis.call('ZREM', left, id)
  redis.call('ZREM', gone, id)
  departures, member = forgotten, hash
elseif last_seen then
  note(gone, id, last_seen, kept)
end
redis.call('ZREMRANGEBYSCORE', departures, '-inf', tonumber(moment) - matters)
note(departures, member, moment, math.ceil(matters))
return moment
