-- Let the window of an id end soon, because it closed its page.
--
-- The same id may have other pages open, also on other devices. So its last-seen time is only
-- lowered, and its next sighting raises it again. Comes after clock.lua, and events.lua or
-- no_events.lua.
--
-- KEYS[1]  sorted set: id by last-seen time
-- KEYS[2]  sorted set: id by the moment of its goodbye
-- KEYS[3]  sorted set: id by the number of its room
-- KEYS[4]  hash: as KEYS[9] in swept_set.lua
-- KEYS[5…] as in events.lua, where it is used
-- ARGV[1]  the id
-- ARGV[2]  moment of the goodbye, in seconds since the epoch
-- ARGV[3]  1 to lower the moment to this server's clock; else 0
-- ARGV[4]  by how many seconds before the moment the last-seen time is lowered
-- ARGV[5]  lifetime of KEYS[2], in seconds
--
-- Reply: the moment at which the goodbye counts.

local seen, goodbyes, rooms, edge = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, moment = ARGV[1], ARGV[2]

if ARGV[3] == '1' then
  moment = not_in_future(moment)
end
local lowered = string.format('%.6f', tonumber(moment) - tonumber(ARGV[4]))
local last_seen = redis.call('ZSCORE', seen, id)
local earlier = redis.call('ZSCORE', goodbyes, id)
if last_seen and tonumber(last_seen) <= tonumber(moment)
  and tonumber(last_seen) > tonumber(lowered)
  and not (earlier and tonumber(earlier) >= tonumber(moment)) then
  redis.call('ZADD', seen, lowered, id)
  redis.call('ZADD', goodbyes, 'GT', moment, id)
  redis.call('EXPIRE', goodbyes, ARGV[5])
  local swept = redis.call('HGET', edge, 'swept')
  if swept and tonumber(lowered) <= tonumber(swept) then
    -- The goodbye is so late that its window is over, and the sweep has passed that moment.
    redis.call('ZREM', rooms, id)
  end
  if cut and tonumber(lowered) <= tonumber(cut) then
    note_gone(goodbyes, {id, last_seen})
    announce(ARGV[5])
  end
end
return moment
