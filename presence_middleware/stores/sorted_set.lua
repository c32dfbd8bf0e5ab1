-- Record sightings in a sorted set of ids by last-seen time. Comes after scored.lua.
--
-- KEYS[1…4] and ARGV[1…8] as in scored.lua
-- ARGV[9…]  time and id of each sighting, in turn
--
-- Reply: as in recording.lua.

local count = (#ARGV - FIRST + 1) / 2
local is_tight = count > room

if not (may_have_left or may_be_forgotten or is_tight) then
  redis.call('ZADD', seen, 'GT', unpack(ARGV, FIRST))
  redis.call('EXPIRE', seen, lifetime)
  note_write(true)
  return {{}, 0, wrote_before}
end

local times, ids = {}, {}
for i = FIRST, #ARGV, 2 do
  times[#times + 1] = ARGV[i]
  ids[#ids + 1] = ARGV[i + 1]
end

local known = is_tight and make_room(ids) or {}
local arrived = arrivals == '' and times or split(arrivals)
local accepted, departed, full = accept(ids, arrived, known, room, is_tight)
local members = {}
for _, n in ipairs(accepted) do
  members[#members + 1] = times[n]
  members[#members + 1] = ids[n]
end
if #members > 0 then
  redis.call('ZADD', seen, 'GT', unpack(members))
  redis.call('EXPIRE', seen, lifetime)
end
note_write(#members > 0)
return {departed, full, wrote_before}
