-- Count who is online in a room, or return a page of the ids in it. Some of these may have gone, if no
-- sweep has reached them: whoever asks compares their times. They stay for the sweeps of the upkeep,
-- because here somebody waits.
--
-- KEYS  as record.lua and presence.lua name them
-- ARGV  the names below in their order
--
-- Reply: the number; or ids, sorted, and the id after which to go on, empty at the end. Nothing if the
-- id `after` is no longer in the room.

local seen = KEYS[1]
local room, -- its number
  offline_before, -- ids last seen up to this moment are no longer online
  most, -- ids to look up for the number, because a command must stay short; 0 for a page
  size, -- of a page
  after -- the id after which to go on; empty to begin
  = unpack(ARGV)
local LOOKED_UP_AT_ONCE = 1000 -- ids

include 'presence'

local members = redis.call('ZCOUNT', rooms, room, room)
-- Nobody is there, or the server has evicted a key.
if not cut or members == 0 or redis.call('EXISTS', seen) == 0 then return {{}, ''} end

-- Return how many ids whose last-seen time is in a range are in the room.
local function in_room(low, high)
  local ids, found = redis.call('ZRANGE', seen, low, high, 'BYSCORE'), 0
  for first = 1, #ids, LOOKED_UP_AT_ONCE do
    local last = math.min(first + LOOKED_UP_AT_ONCE - 1, #ids)
    for _, number in ipairs(redis.call('ZMSCORE', rooms, unpack(ids, first, last))) do
      if number and number + 0 == room + 0 then found = found + 1 end
    end
  end
  return found
end

if most ~= '0' and after == '' then -- look up as few ids as possible
  local gone = redis.call('ZCOUNT', seen, '(' .. cut, offline_before)
  local online = redis.call('ZCOUNT', seen, '(' .. offline_before, '+inf')
  if math.min(gone, online) <= math.min(members, most) then
    if online < gone then return in_room('(' .. offline_before, '+inf') end
    return members - in_room('(' .. cut, offline_before)
  end
end
local first = redis.call('ZCOUNT', rooms, '-inf', '(' .. room)
local last = first + members - 1
if after ~= '' then
  if (redis.call('ZSCORE', rooms, after) or -1) + 0 ~= room + 0 then return false end
  first = redis.call('ZRANK', rooms, after) + 1
end
local stop = math.min(last, first + size - 1)
local ids = redis.call('ZRANGE', rooms, first, stop)
return {ids, stop < last and ids[#ids] or ''}
