-- Take the ids that are no longer online out of their rooms, announce that they have gone, and give
-- ids that said goodbye a window ago their true last-seen time. A bounded number of each: a command
-- must stay short.
--
-- KEYS  as record.lua and presence.lua name them
-- ARGV  the names below in their order. Moments are seconds since the epoch.
--
-- Reply: 1 if there may be more, else 0; then, from the fourth place on, what presence.lua notes.

local seen, bye = KEYS[1], KEYS[2]
local lifetime, -- of the keys, in seconds
  now,
  gone_before, -- ids last seen up to this moment have gone: no late write can change that any more
  most, -- ids of each sort
  moves_before, -- moves up to this moment are dropped
  may_go_back, -- how far the clock may go back, in seconds
  compared -- how many ids in rooms, chosen at random, to compare with `seen`
  = unpack(ARGV)
local reply = {0, 0, 0, 0, 0, 0}

local function later(one, other) return other and other + 0 > one + 0 and other or one end

include 'presence'

-- Return up to `most` members with a score above `low` and up to `high`, and the score up to which
-- these are all.
local function page(key, low, high)
  local found = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  if #found < 2 * most then return found, high end
  reply[1] = 1
  -- Members of equal scores are taken together, because the next page begins after that score.
  local last = found[#found]
  while found[#found] == last do found[#found], found[#found - 1] = nil, nil end
  for _, word in ipairs(redis.call('ZRANGE', key, last, last, 'BYSCORE', 'WITHSCORES')) do
    found[#found + 1] = word
  end
  return found, last
end

if progress then
  if not cut_at or cut_at - may_go_back > now + 0 then
    reset(gone_before) -- the first sweep, or the clock was set back
  elseif cut + 0 < gone_before + 0 then
    local past, reached = page(seen, '(' .. cut, gone_before)
    for i = 1, #past, 2 do go(past[i], past[i + 1]) end
    move_cut(reached)
  end
end
if rooms then
  local old, dropped = page(moves, '-inf', moves_before)
  for i = 1, #old, 2 do redis.call('ZREM', moves, old[i]) end
  if #old > 0 then redis.call('HSET', progress, 'moves_since', dropped) end
  local ids = redis.call('ZRANDMEMBER', rooms, compared)
  for n, score in ipairs(#ids > 0 and redis.call('ZMSCORE', seen, unpack(ids)) or {}) do
    -- A process without rooms may have removed the id from `seen`.
    if not score or score + 0 <= cut + 0 then redis.call('ZREM', rooms, ids[n]) end
  end
end
publish()

-- A goodbye that is written back must not raise a last-seen time above the cut.
local past = page(bye, '-inf', cut or gone_before)
for i = 1, #past, 2 do
  redis.call('ZADD', seen, 'XX', 'GT', past[i + 1], past[i])
  redis.call('ZREM', bye, past[i])
end
return reply
