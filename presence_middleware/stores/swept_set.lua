-- Record sightings in a sorted set of ids by last-seen time, whose ids may be in rooms and may have
-- said goodbye. Comes after scored.lua.
--
-- KEYS[1…4] and ARGV[1…8] as in scored.lua
-- KEYS[5]   sorted set: id by the moment of its goodbye
-- KEYS[6]   sorted set: id by the number of its room; and the empty id by -1, so that the key exists
--           as long as KEYS[8] does
-- KEYS[7]   sorted set: id by the moment it entered its room, or left it; only the latest moves
-- KEYS[8]   hash: `swept`, up to which last-seen time ids have been taken out of their rooms; and
--           `trimmed`, up to which moment KEYS[7] has been trimmed
-- ARGV[9…]  time and id of each sighting, the number of the room (0: in no room; empty: unchanged),
--           and the moment of that move, in turn
--
-- Reply: as in recording.lua.

local goodbyes, rooms, moves, edge = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

if room == max_members then
  -- Nobody is known, or the server has evicted the key: nobody knows who of these is gone.
  redis.call('UNLINK', rooms, moves, edge)
end

local times, ids, numbers, moments = {}, {}, {}, {}
for i = FIRST, #ARGV, 4 do
  local n = #ids + 1
  times[n], ids[n], numbers[n], moments[n] = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
end

local is_tight = #ids > room
local known = {}
if is_tight then
  local removed
  known, removed = make_room(ids)
  for _, id in ipairs(removed) do
    redis.call('ZREM', rooms, id)
    redis.call('ZREM', goodbyes, id)
  end
end
local arrived = arrivals == '' and times or split(arrivals)
local accepted, departed, full = accept(ids, arrived, known, room, is_tight)

-- A sighting from before the goodbye of its id must not undo the goodbye.
local goodbye_at = {}
if redis.call('EXISTS', goodbyes) == 1 then
  goodbye_at = redis.call('ZMSCORE', goodbyes, unpack(ids))
end
local members, moved = {}, {}
for _, n in ipairs(accepted) do
  if not goodbye_at[n] or tonumber(times[n]) > tonumber(goodbye_at[n]) then
    members[#members + 1] = times[n]
    members[#members + 1] = ids[n]
    if numbers[n] ~= '' then
      moved[#moved + 1] = n
    end
  end
end
if #members > 0 then
  redis.call('ZADD', seen, 'GT', unpack(members))
  redis.call('EXPIRE', seen, lifetime)
end
note_write(#accepted > 0)

if #moved > 0 then
  local swept, trimmed = unpack(redis.call('HMGET', edge, 'swept', 'trimmed'))
  if not swept or redis.call('EXISTS', rooms) == 0 then
    -- The first move, or the server has evicted one of the keys.
    redis.call('UNLINK', rooms, moves)
    swept, trimmed = offline_before, '-inf'
    redis.call('HSET', edge, 'swept', swept, 'trimmed', trimmed)
    redis.call('ZADD', rooms, -1, '')
  end
  swept, trimmed = tonumber(swept), trimmed == '-inf' and -math.huge or tonumber(trimmed)
  local movers = {}
  for _, n in ipairs(moved) do
    movers[#movers + 1] = ids[n]
  end
  local moved_at = redis.call('ZMSCORE', moves, unpack(movers))
  local left_at, forgotten_at = {}, {}
  if may_have_left then
    left_at = redis.call('ZMSCORE', left, unpack(movers))
  end
  if may_be_forgotten then
    local all, of_movers = split(hashes), {}
    for m, n in ipairs(moved) do
      of_movers[m] = all[n]
    end
    forgotten_at = redis.call('ZMSCORE', forgotten, unpack(of_movers))
  end
  local entering, leaving, latest = {}, {}, {}
  for m, n in ipairs(moved) do
    -- Processes write in any order. The latest move of an id since it left decides where it is.
    local before = math.max(
      moved_at[m] and tonumber(moved_at[m]) or trimmed,
      tonumber(left_at[m] or '-inf'),
      tonumber(forgotten_at[m] or '-inf')
    )
    if tonumber(moments[n]) > before and tonumber(times[n]) > swept then
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
return {departed, full, wrote_before}
