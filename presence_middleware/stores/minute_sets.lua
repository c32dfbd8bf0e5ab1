-- Record sightings in the set of the ids of one minute.
--
-- KEYS[1]   set: the ids of the minute
-- KEYS[2…4] as in recording.lua, which comes before this file
-- KEYS[5…]  the sets of the other minutes of a window, the nearest first
-- ARGV[1…7] as in recording.lua; ARGV[2] is for the sizes of all sets together
-- ARGV[8…]  the id of each sighting
--
-- Reply: as in recording.lua.

local minute = KEYS[1]
local FIRST_OTHER = 5
local FIRST = 8
local count = #ARGV - FIRST + 1

local wrote_before = false
if process ~= '' then
  wrote_before = redis.call('ZSCORE', writers, process)
  redis.call('ZADD', writers, now, process)
  redis.call('EXPIRE', writers, lifetime)
end

local room = max_members - redis.call('SCARD', minute)
for i = FIRST_OTHER, #KEYS do
  room = room - redis.call('SCARD', KEYS[i])
end
local is_tight = count > room

if not (may_have_left or may_be_forgotten or is_tight) then
  redis.call('SADD', minute, unpack(ARGV, FIRST))
  redis.call('EXPIRE', minute, lifetime)
  return {{}, 0, wrote_before}
end

local ids = {}
for i = FIRST, #ARGV do
  ids[#ids + 1] = ARGV[i]
end

local known = {}
local function find_known(key)
  for n, is_member in ipairs(redis.call('SMISMEMBER', key, unpack(ids))) do
    known[n] = known[n] or is_member == 1
  end
end
if is_tight then
  find_known(minute)
  for i = FIRST_OTHER, #KEYS do
    find_known(KEYS[i])
  end
end

local accepted, departed, full = accept(ids, split(arrivals), known, room, is_tight)
local members = {}
for _, n in ipairs(accepted) do
  members[#members + 1] = ids[n]
end
if #members > 0 then
  redis.call('SADD', minute, unpack(members))
  redis.call('EXPIRE', minute, lifetime)
end
return {departed, full, wrote_before}
