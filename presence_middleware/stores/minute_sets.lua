-- Apply what people did to the sets of the ids of each minute: departures, or sightings of one minute.
-- The departures of a write are sent first: whoever was seen after them is added again.
--
-- KEYS[1] left     as in record.lua
-- KEYS[2] gone     id that left, by the minute of its last sighting
-- KEYS[3] writers  process by its last write
-- KEYS[4…]         for departures the sets of consecutive minutes; for sightings the set of their
--                  minute, then those of the other minutes of a window, the nearest first
--
-- ARGV and the reply are those of people.lua. The last argument of sightings limits all their sets.

local left, gone, writers = unpack(KEYS, 1, 3) -- there may be too many for Lua's stack
local FIRST_SET, first_minute = 4, string.match(KEYS[4], '%d+$')

include 'people'

if #ids > 0 then
  local known, room = {}, ARGV[#ARGV] + 0
  for i = FIRST_SET, #KEYS do room = room - redis.call('SCARD', KEYS[i]) end
  for i = FIRST_SET, #ids > room and #KEYS or 0 do
    for n, is_member in ipairs(redis.call('SMISMEMBER', KEYS[i], unpack(ids))) do
      known[n] = known[n] or is_member == 1
    end
  end
  local accepted = accept(room, known, {})
  if #accepted > 0 then redis.call('SADD', KEYS[FIRST_SET], unpack(accepted)) end
  redis.call('EXPIRE', KEYS[FIRST_SET], lifetime)
end

finish(function(act, id, moment, latest)
  local known, last_seen = redis.call('ZSCORE', left, erased(id)), nil
  if act ~= ERASED then known = later(known, redis.call('ZSCORE', left, id)) end
  -- Not again, nor for a sighting that was refused: others may have seen the id since.
  for n = FIRST_SET, (is_ahead(known) or not at_least(known, moment)) and #KEYS or 0 do
    local minute = (first_minute + n - FIRST_SET) * 60
    if minute <= latest + 0 and redis.call('SREM', KEYS[n], id) == 1 then last_seen = minute end
  end
  return last_seen, last_seen
end)
redis.call('EXPIRE', writers, lifetime)
return reply
