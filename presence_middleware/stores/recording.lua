-- The common beginning of sorted_set.lua and minute_sets.lua.
--
-- A sighting may wait in one process while its user logs out in another. So the check for
-- departures and the write are one script, with no command of another client between them.
--
-- KEYS[2]  sorted set: id by the moment of its logout
-- KEYS[3]  sorted set: SHA-1 of an erased id by the moment of its erasure
-- KEYS[4]  sorted set: process by the moment of its last write
-- ARGV[1]  lifetime of the keys after this write, in seconds
-- ARGV[2]  maximum number of members
-- ARGV[3]  the earliest arrival among the sightings
-- ARGV[4]  all arrivals, separated by spaces; empty if they equal the times of the sightings
-- ARGV[5]  the process that writes; empty to note no write
-- ARGV[6]  moment of this write
-- ARGV[7]  SHA-1 of each id, separated by spaces; empty to send them only if they are needed
--
-- All moments are seconds since the epoch.
--
-- Reply of both scripts: the ids that left since they arrived, how many new ids found no room, and
-- the moment of the previous write of this process (false if there is none). If the hashes are
-- needed but missing, the reply is nothing, and nothing has been recorded.

local left, forgotten, writers = KEYS[2], KEYS[3], KEYS[4]
local lifetime, max_members, earliest, arrivals = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local process, now, hashes = ARGV[5], ARGV[6], ARGV[7]

local function any_since(key)
  return redis.call('ZCOUNT', key, earliest, '+inf') > 0
end
local may_have_left, may_be_forgotten = false, false
if redis.call('EXISTS', left, forgotten) > 0 then
  may_have_left, may_be_forgotten = any_since(left), any_since(forgotten)
end
if may_be_forgotten and hashes == '' then
  return false
end

local function split(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do
    words[#words + 1] = word
  end
  return words
end

-- Decide on each sighting. `arrived` has the arrival of each id, `known` whether it is a member
-- (empty if there is room for all), and `room` is the number of new members that may be added.
-- Return the positions of the accepted sightings, the departed ids, and the number of ids that
-- found no room.
local function accept(ids, arrived, known, room, is_tight)
  local left_at, forgotten_at = {}, {}
  if may_have_left then
    left_at = redis.call('ZMSCORE', left, unpack(ids))
  end
  if may_be_forgotten then
    forgotten_at = redis.call('ZMSCORE', forgotten, unpack(split(hashes)))
  end
  local accepted, departed, full = {}, {}, 0
  for n, id in ipairs(ids) do
    local since = tonumber(arrived[n])
    local has_left = (left_at[n] and tonumber(left_at[n]) >= since)
      or (forgotten_at[n] and tonumber(forgotten_at[n]) >= since)
    if has_left then
      departed[#departed + 1] = id
    elseif is_tight and not known[n] and room <= 0 then
      full = full + 1
    else
      if not known[n] then
        room = room - 1
      end
      accepted[#accepted + 1] = n
    end
  end
  return accepted, departed, full
end
