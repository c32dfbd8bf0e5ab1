-- Count or list who is online in a room. The room may still contain ids that are not online, if no
-- sweep has reached them. They stay for the sweeps of the upkeep, because here somebody waits.
--
-- KEYS[1] seen      as in record.lua
-- KEYS[2] rooms     as in rooms.lua
-- KEYS[3] progress  as in rooms.lua
-- ARGV              the names below in their order. Moments are seconds since the epoch.
--
-- Reply: how many ids, or with `wanted` the ids, sorted; and the id after which to go on, empty at the
-- end. Nothing if a sweep must come first, or if the id `after` is no longer in the room.

local seen, rooms, progress = unpack(KEYS)
local room, -- its number
  now,
  offline_before, -- ids last seen up to this moment are no longer online
  most, -- ids to look up, because a command must stay short
  wanted, -- ids in the reply; 0 to count
  after -- the id after which to go on; empty to begin
  = unpack(ARGV)
local PAGE = 1000 -- ids in one look-up
wanted, most = wanted + 0, most + 0

local swept, told = unpack(redis.call('HMGET', progress, 'rooms_until', 'rooms_told'))
-- Nobody has entered a room, or the server has evicted a key.
if not swept or redis.call('EXISTS', seen, rooms) < 2 then return {wanted > 0 and {} or 0, ''} end
if swept + 0 > now + 0 then return false end -- the clock was set back
if told and told + 0 > offline_before + 0 then offline_before = told end
local unswept, online, here = {'(' .. swept, offline_before}, {'(' .. offline_before, '+inf'}, {room, room}
local function size(key, range) return redis.call('ZCOUNT', key, unpack(range)) end
local members, expired = size(rooms, here), size(seen, unswept)
if expired > 0 then
  -- Whoever comes back without a page is in no room, as if a sweep had reached the id.
  redis.call('HSET', progress, 'rooms_told', offline_before)
elseif wanted == 0 and after == '' then
  return {members, ''}
end

-- Return those of `ids` with a score above `low` and up to `high` in another set, in their order.
local function between(ids, other, low, high)
  local found = {}
  for first = 1, #ids, PAGE do
    local last = math.min(first + PAGE - 1, #ids)
    for n, score in ipairs(redis.call('ZMSCORE', other, unpack(ids, first, last))) do
      score = score and score + 0
      if score and score > low and score <= high then found[#found + 1] = ids[first + n - 1] end
    end
  end
  return found
end

if wanted == 0 and after == '' then -- look up as few ids as possible
  local function in_room(range)
    return #between(redis.call('ZRANGE', seen, range[1], range[2], 'BYSCORE'), rooms, room - 1, room + 0)
  end
  local present = size(seen, online)
  if math.min(expired, present) <= math.min(members, most) then
    return {present < expired and in_room(online) or members - in_room(unswept), ''}
  end
end
local first = size(rooms, {'-inf', '(' .. room})
local last = first + members - 1
if after ~= '' then
  local number = redis.call('ZSCORE', rooms, after)
  if not number or number + 0 ~= room + 0 then return false end
  first = redis.call('ZRANK', rooms, after) + 1
end
local page = math.ceil(most / 4) -- because to look up a time takes longer than the number of a room
if expired == 0 and wanted > 0 then page = wanted end
local stop = math.min(last, first + page - 1)
local ids = redis.call('ZRANGE', rooms, first, stop)
local after_these = stop < last and ids[#ids] or ''
if expired > 0 then ids = between(ids, seen, offline_before + 0, math.huge) end
if wanted == 0 then return {#ids, after_these} end
for n = wanted + 1, #ids do ids[n] = nil end
return {ids, after_these}
