-- The common middle of sorted_set.lua and swept_set.lua, after recording.lua.
--
-- KEYS[1]   sorted set: id by last-seen time
-- KEYS[2…4] as in recording.lua; in KEYS[4], the empty process name exists while the sorted set has
--           members
-- ARGV[1…7] as in recording.lua
-- ARGV[8]   ids last seen up to this moment are no longer online
-- ARGV[9…]  the sightings, in turn

local seen, offline_before = KEYS[1], ARGV[8]
local FIRST, MOST_REMOVED = 9, 1000

local wrote_before, is_evicted = false, false
if redis.call('EXISTS', seen) == 0 and redis.call('ZSCORE', writers, '') then
  -- The server evicted the sorted set alone. Without this key, every process writes again.
  redis.call('DEL', writers)
  is_evicted = true
end
if process ~= '' then
  wrote_before = redis.call('ZSCORE', writers, process)
end
local function note_write(has_members)
  if process ~= '' then
    redis.call('ZADD', writers, now, process, now, has_members and '' or process)
  elseif has_members then
    redis.call('ZADD', writers, 'NX', earliest, '')
  end
  redis.call('EXPIRE', writers, lifetime)
end

local room = max_members - redis.call('ZCARD', seen)

-- Remove ids that are offline to make room for new ids, but only as many as are needed: a command
-- must stay short. Raise `room` by their number. Return the last-seen times of `ids`, and the
-- removed ids and theirs in turn.
local function make_room(ids)
  local known = redis.call('ZMSCORE', seen, unpack(ids))
  local is_recorded, new, removed = {}, 0, {}
  for n, id in ipairs(ids) do
    is_recorded[id] = true
    if not known[n] then
      new = new + 1
    end
  end
  if new > room then
    -- There are many too many after PRESENCE_MAX_MEMBERS was lowered.
    local most = math.min(new - room + #ids, MOST_REMOVED)
    local offline = redis.call(
      'ZRANGE', seen, '-inf', offline_before, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES'
    )
    for i = 1, #offline, 2 do
      if new > room and not is_recorded[offline[i]] then
        redis.call('ZREM', seen, offline[i])
        room = room + 1
        removed[#removed + 1] = offline[i]
        removed[#removed + 1] = offline[i + 1]
      end
    end
  end
  return known, removed
end
