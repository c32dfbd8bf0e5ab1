-- Take an id offline in the sets of the ids of each minute, or erase it.
--
-- As in depart_sorted_set.lua, an id that was seen after its departure stays online.
--
-- KEYS[1]   sorted set: id by the moment of its logout
-- KEYS[2]   sorted set: SHA-1 of an erased id by the moment of its erasure
-- KEYS[3]   sorted set: departed id by the minute of its last sighting
-- KEYS[4…]  the set of each minute, the earliest first
-- ARGV[1…7] as in departing.lua, which comes before this file
-- ARGV[8]   start of the first minute, in seconds since the epoch
--
-- Reply: the moment at which the departure counts.

local left, forgotten, gone = KEYS[1], KEYS[2], KEYS[3]
local FIRST_SET = 4
local first_minute = tonumber(ARGV[8])

local last_seen = false
for i = FIRST_SET, #KEYS do
  local minute = first_minute + (i - FIRST_SET) * 60
  if minute <= tonumber(moment) and redis.call('SREM', KEYS[i], id) == 1 then
    last_seen = minute
  end
end
note_departure(left, forgotten, gone, last_seen)
return moment
