-- Record sightings in a sorted set of ids by last-seen time, whose ids may be in rooms and may have
-- said goodbye. Comes after scored.lua, and events.lua or no_events.lua.
--
-- KEYS[1…4] and ARGV[1…8] as in scored.lua
-- KEYS[5]   sorted set: id by the moment of its goodbye
-- KEYS[6]   sorted set: id by the number of its room
-- KEYS[7]   sorted set: id by the moment it entered its room, or left it; only the latest moves
-- KEYS[8]   hash: `swept`, up to which last-seen time ids have been taken out of their rooms; and
--           `trimmed`, up to which moment KEYS[7] has been trimmed
-- KEYS[9]   stream: as KEYS[#KEYS] in events.lua
-- ARGV[9]   seconds for which an id is online after it was seen
-- ARGV[10]  the moves: place of the id among the sightings, number of the room (0: in no room) and
--           moment of the move, in turn, separated by spaces
-- ARGV[11…] time and id of each sighting, in turn
--
-- Reply: as in recording.lua, then how many ids came online, and how many went offline.

local goodbyes, rooms, moves, edge = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local window = tonumber(ARGV[9])
if is_evicted then
  -- Nobody knows who of these is gone.
  redis.call('UNLINK', rooms, moves)
  redis.call('HDEL', edge, 'swept', 'trimmed')
end
if is_evicted or not cut then
  reset(offline_before)
end

local first_sighting = FIRST + 2
local ids, count = {}, 0
for i = first_sighting + 1, #ARGV, 2 do
  count = count + 1
  ids[count] = ARGV[i]
end

local is_tight = count > room
local departed, full = {}, 0
local is_refused = {}
local has_goodbyes = redis.call('EXISTS', goodbyes) == 1
if not (may_have_left or may_be_forgotten or is_tight or has_goodbyes) then
  note_arrivals(seen, goodbyes, window, offline_before, ids, ARGV, first_sighting)
  redis.call('ZADD', seen, 'GT', unpack(ARGV, first_sighting))
  redis.call('EXPIRE', seen, lifetime)
  note_write(true)
else
  local times = {}
  for n = 1, count do
    times[n] = ARGV[first_sighting + 2 * n - 2]
  end
  local known = {}
  if is_tight then
    local removed
    known, removed = make_room(ids)
    note_gone(goodbyes, removed)
    for i = 1, #removed, 2 do
      redis.call('ZREM', rooms, removed[i])
      redis.call('ZREM', goodbyes, removed[i])
    end
  end
  local arrived, accepted = arrivals == '' and times or split(arrivals), nil
  accepted, departed, full = accept(ids, arrived, known, room, is_tight)
  for n = 1, count do
    is_refused[n] = true
  end
  -- A sighting from before the goodbye of its id must not undo the goodbye.
  local goodbye_at = has_goodbyes and redis.call('ZMSCORE', goodbyes, unpack(ids)) or {}
  local members, member_ids = {}, {}
  for _, n in ipairs(accepted) do
    if not goodbye_at[n] or tonumber(times[n]) > tonumber(goodbye_at[n]) then
      is_refused[n] = false
      members[#members + 1] = times[n]
      members[#members + 1] = ids[n]
      member_ids[#member_ids + 1] = ids[n]
    end
  end
  if #members > 0 then
    note_arrivals(seen, goodbyes, window, offline_before, member_ids, members, 1)
    redis.call('ZADD', seen, 'GT', unpack(members))
    redis.call('EXPIRE', seen, lifetime)
  end
  note_write(#members > 0 or redis.call('EXISTS', seen) == 1)
end
announce(lifetime)

local moves_of = split(ARGV[FIRST + 1])
local moved, numbers, moments = {}, {}, {}
for i = 1, #moves_of, 3 do
  local n = tonumber(moves_of[i])
  if not is_refused[n] then
    moved[#moved + 1] = n
    numbers[n], moments[n] = moves_of[i + 1], moves_of[i + 2]
  end
end
if #moved > 0 then
  local swept, trimmed = unpack(redis.call('HMGET', edge, 'swept', 'trimmed'))
  if not swept then
    -- Without the edge, nobody knows who of these is gone.
    redis.call('UNLINK', rooms, moves)
    swept, trimmed = offline_before, '-inf'
    redis.call('HSET', edge, 'swept', swept, 'trimmed', trimmed)
  end
  swept, trimmed = tonumber(swept), trimmed == '-inf' and -math.huge or tonumber(trimmed)
  local movers = {}
  for _, n in ipairs(moved) do
    movers[#movers + 1] = ids[n]
  end
  local moved_at = redis.call('ZMSCORE', moves, unpack(movers))
  local entering, leaving, latest = {}, {}, {}
  for m, n in ipairs(moved) do
    -- Processes write in any order. The latest move of an id decides where it is.
    local before = moved_at[m] and tonumber(moved_at[m]) or trimmed
    if tonumber(moments[n]) > before and tonumber(ARGV[first_sighting + 2 * n - 2]) > swept then
      latest[#latest + 1] = moments[n]
      latest[#latest + 1] = ids[n]
      if numbers[n] == '0' then
        leaving[#leaving + 1] = ids[n]
      else
        entering[#entering + 1] = numbers[n]
        entering[#entering + 1] = ids[n]
      end
    end
  end
  if #latest > 0 then
    redis.call('ZADD', moves, unpack(latest))
  end
  if #entering > 0 then
    redis.call('ZADD', rooms, unpack(entering))
  end
  if #leaving > 0 then
    redis.call('ZREM', rooms, unpack(leaving))
  end
  for _, key in ipairs({rooms, moves, edge}) do
    redis.call('EXPIRE', key, lifetime)
  end
end
return {departed, full, wrote_before, announced.came, announced.went}
