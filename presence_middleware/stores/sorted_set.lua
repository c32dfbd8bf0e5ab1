-- Record sightings in a sorted set of ids by last-seen time.
--
-- KEYS[1]   sorted set: id by last-seen time
-- KEYS[2…4] as in recording.lua, which comes before this file; in KEYS[4], the empty process name
--           exists while the sorted set has members
-- ARGV[1…7] as in recording.lua
-- ARGV[8]   ids last seen up to this moment are no longer online
-- ARGV[9…]  time and id of each sighting, in turn
--
-- Reply: as in recording.lua.

local seen, offline_before = KEYS[1], ARGV[8]
local FIRST = 9
local count = (#ARGV - FIRST + 1) / 2

local wrote_before = false
if process ~= '' then
  if redis.call('EXISTS', seen) == 0 and redis.call('ZSCORE', writers, '') then
    -- The server evicted the sorted set alone. Without this key, every process writes again.
    redis.call('DEL', writers)
  end
  wrote_before = redis.call('ZSCORE', writers, process)
end
local function note_write(has_members)
  if process ~= '' then
    redis.call('ZADD', writers, now, process, now, has_members and '' or process)
    redis.call('EXPIRE', writers, lifetime)
  end
end

local room = max_members - redis.call('ZCARD', seen)
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

local known = {}
if is_tight then
  known = redis.call('ZMSCORE', seen, unpack(ids))
  local is_recorded, new = {}, 0
  for n, id in ipairs(ids) do
    is_recorded[id] = true
    if not known[n] then
      new = new + 1
    end
  end
  if new > room then
    -- Remove ids that are offline, but only as many as are needed: a command must stay short.
    local most = new - room + count
    local offline =
      redis.call('ZRANGE', seen, '-inf', offline_before, 'BYSCORE', 'LIMIT', 0, most)
    for _, id in ipairs(offline) do
      if new > room and not is_recorded[id] then
        redis.call('ZREM', seen, id)
        room = room + 1
      end
    end
  end
end

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
