-- Record sightings in a sorted set of ids by last-seen time, whose ids may be in rooms and may have
-- said goodbye. Comes after scored.lua, and events.lua or no_events.lua.
--
-- KEYS[1…4] and ARGV[1…8] as in scored.lua
-- KEYS[5]   sorted set: id by the moment of its goodbye
-- KEYS[6]   sorted set: id by the number of its room; and the empty id by -1, so that the key exists
--           as long as KEYS[9] does
-- KEYS[7]   hash: id to the moment at which it last entered or left a room
-- KEYS[8]   hash: the same of earlier moves
-- KEYS[9]   hash: `swept`, up to which last-seen time ids have been taken out of their rooms;
--           `delay`, how many seconds the last sweep left between that and now; `dropped`, up to
--           which moment moves are neither in KEYS[7] nor in KEYS[8]; and `turned`, when KEYS[7]
--           last became KEYS[8]
-- KEYS[10…] as in events.lua, where it is used
-- ARGV[9]   the number of sightings
-- ARGV[10]  seconds for which an id is online after it was seen
-- ARGV[11…] time and id of each sighting, in turn; then, for each sighting with a move: its position
--           from 1, the number of the room (0: in no room), and the moment of the move
--
-- Reply: as in recording.lua, then how many ids came online, and how many went offline.

local goodbyes, rooms, moves, earlier_moves, edge = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local count, window = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1])
local FIRST_TIME, FIRST_MOVE = FIRST + 2, FIRST + 2 + 2 * count

if room == max_members then
  -- Nobody is known, or the server has evicted the key: nobody knows who of these is gone.
  redis.call('UNLINK', rooms, moves, earlier_moves, edge)
end
if is_evicted or not cut then
  reset(offline_before, '')
end

local departed, full, is_recorded = {}, 0, nil
local is_tight = count > room
local has_goodbyes = redis.call('EXISTS', goodbyes) == 1
if not (may_have_left or may_be_forgotten or is_tight or has_goodbyes) then
  note_arrivals(seen, goodbyes, window, offline_before, ARGV, FIRST_TIME, FIRST_MOVE - 1)
  redis.call('ZADD', seen, 'GT', unpack(ARGV, FIRST_TIME, FIRST_MOVE - 1))
  redis.call('EXPIRE', seen, lifetime)
  note_write(true)
else
  local times, ids = {}, {}
  for i = FIRST_TIME, FIRST_MOVE - 1, 2 do
    times[#times + 1] = ARGV[i]
    ids[#ids + 1] = ARGV[i + 1]
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
  local arrived = arrivals == '' and times or split(arrivals)
  local accepted
  accepted, departed, full = accept(ids, arrived, known, room, is_tight)

  -- A sighting from before the goodbye of its id must not undo the goodbye.
  local goodbye_at = has_goodbyes and redis.call('ZMSCORE', goodbyes, unpack(ids)) or {}
  local members = {}
  is_recorded = {}
  for _, n in ipairs(accepted) do
    if not goodbye_at[n] or tonumber(times[n]) > tonumber(goodbye_at[n]) then
      members[#members + 1] = times[n]
      members[#members + 1] = ids[n]
      is_recorded[n] = true
    end
  end
  if #members > 0 then
    note_arrivals(seen, goodbyes, window, offline_before, members, 1, #members)
    redis.call('ZADD', seen, 'GT', unpack(members))
    redis.call('EXPIRE', seen, lifetime)
  end
  note_write(#members > 0 or redis.call('EXISTS', seen) == 1)
end
announce(lifetime)

-- The id of each moving sighting, its position among the sightings, and that of its move in ARGV.
local movers, positions, places, many = {}, {}, {}, 0
for i = FIRST_MOVE, #ARGV, 3 do
  local n = tonumber(ARGV[i])
  if not is_recorded or is_recorded[n] then
    many = many + 1
    movers[many], positions[many], places[many] = ARGV[FIRST_TIME + 2 * n - 1], n, i
  end
end
if many > 0 then
  local swept, dropped = unpack(redis.call('HMGET', edge, 'swept', 'dropped'))
  if not swept or redis.call('EXISTS', rooms) == 0 then
    -- The first move, or the server has evicted one of the keys.
    redis.call('UNLINK', rooms, moves, earlier_moves)
    swept, dropped = offline_before, '-inf'
    redis.call('HSET', edge, 'swept', swept, 'dropped', dropped, 'turned', '-inf')
    redis.call('ZADD', rooms, -1, '')
  end
  swept, dropped = tonumber(swept), dropped == '-inf' and -math.huge or tonumber(dropped)
  local moved_at = redis.call('HMGET', moves, unpack(movers))
  local moved_earlier_at, left_at, forgotten_at = {}, {}, {}
  if redis.call('EXISTS', earlier_moves) == 1 then
    moved_earlier_at = redis.call('HMGET', earlier_moves, unpack(movers))
  end
  if may_have_left then
    left_at = redis.call('ZMSCORE', left, unpack(movers))
  end
  if may_be_forgotten then
    local all, of_movers = split(hashes), {}
    for m, n in ipairs(positions) do
      of_movers[m] = all[n]
    end
    forgotten_at = redis.call('ZMSCORE', forgotten, unpack(of_movers))
  end
  local entering, entered, leaving, latest, size = {}, 0, {}, {}, 0
  for m = 1, many do
    -- Processes write in any order. The latest move of an id since it left decides where it is.
    local id, place = movers[m], places[m]
    local number, moment = ARGV[place + 1], tonumber(ARGV[place + 2])
    local before = tonumber(moved_at[m] or moved_earlier_at[m] or dropped)
    local has_left = (left_at[m] and tonumber(left_at[m]) >= moment)
      or (forgotten_at[m] and tonumber(forgotten_at[m]) >= moment)
    local is_online = moment > swept or tonumber(ARGV[FIRST_TIME + 2 * positions[m] - 2]) > swept
    if moment > before and not has_left and is_online then
      latest[size + 1], latest[size + 2] = id, ARGV[place + 2]
      size = size + 2
      if number == '0' then
        leaving[#leaving + 1] = id
      else
        entering[entered + 1], entering[entered + 2] = number, id
        entered = entered + 2
      end
    end
  end
  if size > 0 then
    redis.call('HSET', moves, unpack(latest))
  end
  if entered > 0 then
    redis.call('ZADD', rooms, unpack(entering))
  end
  if #leaving > 0 then
    redis.call('ZREM', rooms, unpack(leaving))
  end
  for _, key in ipairs({rooms, moves, earlier_moves, edge}) do
    redis.call('EXPIRE', key, lifetime)
  end
end
return {departed, full, wrote_before, announced.came, announced.went}
