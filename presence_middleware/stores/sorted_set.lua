-- Record sightings in a sorted set of ids by last-seen time.
--
-- A sighting may wait in one process while its user logs out in another. So the look at who left
-- and the write are one script, with no other client between them.
--
-- KEYS[1]   the sorted set
-- KEYS[2]   who left: id by the moment of leaving
-- KEYS[3]   who was erased: SHA-1 of an id by the moment of erasing
-- KEYS[4]   which processes wrote: process by the moment of its last write; the empty name is
--           there while the sorted set has members
-- ARGV[1]   seconds that the keys live after this write
-- ARGV[2]   how many members the sorted set may have
-- ARGV[3]   the earliest arrival among the sightings
-- ARGV[4]   their arrivals with spaces between; empty if each was seen as it arrived
-- ARGV[5]   the process that writes; empty if that is not to be noted
-- ARGV[6]   the moment of this write
-- ARGV[7]   SHA-1 of each id with spaces between; empty to send them only if they are needed
-- ARGV[8]   who was last seen up to this moment is online no more
-- ARGV[9…]  moment and id of each sighting, in turn
--
-- Reply: the ids that left since they arrived, how many new ids found no room, and when the
-- process wrote before this (false if that is not known). Or nothing, if the hashes are needed:
-- then nothing is recorded yet.

local seen, left, forgotten, writers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lifetime, most, earliest, arrivals = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local process, now, hashes, cut = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local FIRST = 9
local count = (#ARGV - FIRST + 1) / 2

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

local wrote_before = false
if process ~= '' then
  if redis.call('EXISTS', seen) == 0 and redis.call('ZSCORE', writers, '') then
    redis.call('DEL', writers) -- it was evicted alone: every process shall write again
  end
  wrote_before = redis.call('ZSCORE', writers, process)
end
local function note_write(has_members)
  if process ~= '' then
    redis.call('ZADD', writers, now, process, now, has_members and '' or process)
    redis.call('EXPIRE', writers, lifetime)
  end
end

local room = most - redis.call('ZCARD', seen)
local is_tight = count > room

if not (may_have_left or may_be_forgotten or is_tight) then
  redis.call('ZADD', seen, 'GT', unpack(ARGV, FIRST))
  redis.call('EXPIRE', seen, lifetime)
  note_write(true)
  return {{}, 0, wrote_before}
end

local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    found[#found + 1] = word
  end
  return found
end
local moments, ids, arrived = {}, {}, words(arrivals)
for i = FIRST, #ARGV, 2 do
  moments[#moments + 1] = ARGV[i]
  ids[#ids + 1] = ARGV[i + 1]
end
local left_at, forgotten_at = {}, {}
if may_have_left then
  left_at = redis.call('ZMSCORE', left, unpack(ids))
end
if may_be_forgotten then
  forgotten_at = redis.call('ZMSCORE', forgotten, unpack(words(hashes)))
end
local known = {}
if is_tight then
  known = redis.call('ZMSCORE', seen, unpack(ids))
  local comes, new = {}, 0
  for n, id in ipairs(ids) do
    comes[id] = true
    if not known[n] then
      new = new + 1
    end
  end
  if new > room then
    -- Those who are online no more go first, no more than are needed: a command stays short.
    local over = redis.call('ZRANGE', seen, '-inf', cut, 'BYSCORE', 'LIMIT', 0, new - room + count)
    for _, id in ipairs(over) do
      if new > room and not comes[id] then
        redis.call('ZREM', seen, id)
        room = room + 1
      end
    end
  end
end

local fresh, refused, full = {}, {}, 0
for n, id in ipairs(ids) do
  local since = tonumber(arrived[n] or moments[n])
  local has_left = (left_at[n] and tonumber(left_at[n]) >= since)
    or (forgotten_at[n] and tonumber(forgotten_at[n]) >= since)
  if has_left then
    refused[#refused + 1] = id
  elseif is_tight and not known[n] and room <= 0 then
    full = full + 1
  else
    if not known[n] then
      room = room - 1
    end
    fresh[#fresh + 1] = moments[n]
    fresh[#fresh + 1] = id
  end
end
if #fresh > 0 then
  redis.call('ZADD', seen, 'GT', unpack(fresh))
  redis.call('EXPIRE', seen, lifetime)
end
note_write(#fresh > 0)
return {refused, full, wrote_before}
