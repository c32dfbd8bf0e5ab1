-- Take the ids that are no longer online out of their rooms, announce that they have gone, and give
-- ids that said goodbye a window ago their true last-seen time. A bounded number of each: a command
-- must stay short.
--
-- KEYS  as record.lua names them: it uses `seen`, `bye`, `progress` and the keys of its hooks
-- ARGV  the names below in their order. Moments are seconds since the epoch.
--
-- Reply: 1 if there may be more, else 0; then, from the fourth place on, what events.lua notes.

local seen, bye, progress = KEYS[1], KEYS[2], KEYS[6]
local lifetime, -- of the keys, in seconds
  now,
  offline_before, -- ids last seen up to this moment are no longer online
  gone_before, -- ids last seen up to this moment have gone: no late write can change that any more
  most, -- ids of each sort
  moves_before, -- moves up to this moment are dropped
  may_go_back, -- how far the clock may go back, in seconds
  compared -- how many ids in rooms, chosen at random, to compare with `seen`
  = unpack(ARGV)
local reply = {0, 0, 0, 0, 0, 0}

local function later(one, other) return other and other + 0 > one + 0 and other or one end

-- Return how many seconds this sweep leaves between a moment and now.
local function delay_of(moment) return string.format('%.3f', now - moment) end

-- Return whether an earlier sweep, which left `delay`, reached so far beyond a moment of this one that
-- the clock was set back. A process with a shorter window reaches further too.
local function is_ahead(reached, moment, delay)
  return reached - may_go_back > moment + 0 and (delay == delay_of(moment) or reached + 0 > now + 0)
end

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

local hooks = {}

local passed = offline_before
for _, hook in ipairs(hooks) do passed = hook.sweep() or passed end
for _, hook in ipairs(hooks) do hook.reply(reply) end

-- A goodbye that is written back must not raise a last-seen time above what has been announced.
local past = page(bye, '-inf', passed)
for i = 1, #past, 2 do
  redis.call('ZADD', seen, 'XX', 'GT', past[i + 1], past[i])
  redis.call('ZREM', bye, past[i])
end
return reply
