-- Take the ids that are no longer online out of their rooms, announce that they have gone, and give
-- ids that said goodbye a window ago their true last-seen time: a part of record.lua, for a call
-- without people. A bounded number of each: a command must stay short.
--
-- ARGV[2…]  the names below in their order
--
-- Notes in the reply, in its seventh place: 1 if there may be more, else 0.

local function sweep()
  local lag, -- how long after its window an id has gone: no late write can change that any more
    most, -- ids of each sort
    compared -- how many ids in rooms, chosen at random, to compare with `seen`
    = unpack(ARGV, FIRST)
  local gone_before = string.format('%.6f', now - window - lag)

  -- Return the members with a score above `low` and up to `high`, and the score up to which these
  -- are all: about `most`, because members of equal scores are taken together.
  local function page(key, low, high)
    local found = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    if #found == 2 * most then
      reply[7], high = 1, found[#found]
      found = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'WITHSCORES')
    end
    return found, high
  end

  if progress then
    -- Whoever is seen after the clock was set back must not seem to be gone already.
    if cut_at - math.min(slack, window / 2) > now + 0 then
      reset()
    elseif cut + 0 < gone_before + 0 then
      local past, reached = page(seen, '(' .. cut, gone_before)
      for i = 1, #past, 2 do go(past[i], past[i + 1]) end
      move_cut(reached)
    end
  end
  if rooms then
    local since = redis.call('ZSCORE', moves, '') or '-inf'
    local past, dropped = page(moves, '(' .. since, now - window - slack)
    if #past > 0 then
      redis.call('ZREMRANGEBYSCORE', moves, '-inf', dropped)
      redis.call('ZADD', moves, dropped, '')
    end
    local ids = redis.call('ZRANDMEMBER', rooms, compared)
    for n, score in ipairs(#ids > 0 and redis.call('ZMSCORE', seen, unpack(ids)) or {}) do
      -- A process without rooms may have removed the id from `seen`.
      if not score or score + 0 <= cut + 0 then redis.call('ZREM', rooms, ids[n]) end
    end
  end
  -- A goodbye that is written back must not raise a last-seen time above the cut.
  local past = page(bye, '-inf', cut or gone_before)
  for i = 1, #past, 2 do
    redis.call('ZADD', seen, 'XX', 'GT', past[i + 1], past[i])
    redis.call('ZREM', bye, past[i])
  end
end
