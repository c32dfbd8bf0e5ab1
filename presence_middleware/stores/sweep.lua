-- Announce who has gone offline, take the ids out of their rooms that are no longer online, and give
-- the ids that said goodbye a window ago their true last-seen time. A bounded number of each: a
-- command must stay short. Comes after events.lua or no_events.lua.
--
-- KEYS[1]  sorted set: id by last-seen time
-- KEYS[2]  sorted set: id by the moment of its goodbye
-- KEYS[3]  sorted set: id by the number of its room
-- KEYS[4]  hash: id to the moment of its last move
-- KEYS[5]  hash: the same of earlier moves
-- KEYS[6]  hash: as KEYS[9] in swept_set.lua
-- KEYS[7…] as in events.lua, where it is used
-- ARGV[1]  ids last seen up to this moment are no longer online
-- ARGV[2]  the most ids of each sort
-- ARGV[3]  now
-- ARGV[4]  for how many seconds moves are compared with late writes, at least
-- ARGV[5]  how far the clock may go back, in seconds
-- ARGV[6]  lifetime of the keys, in seconds
-- ARGV[7]  how many ids in rooms, chosen at random, to compare with KEYS[1]: a process without rooms
--          may have removed them there
-- ARGV[8]  ids last seen up to this moment have gone: a late write cannot change that any more
--
-- All moments are seconds since the epoch.
--
-- Reply: 1 if there may be more, else 0; and how many ids went offline.

local seen, goodbyes, rooms = KEYS[1], KEYS[2], KEYS[3]
local moves, earlier_moves, edge = KEYS[4], KEYS[5], KEYS[6]
local offline_before, most, now, late = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local may_go_back, lifetime, compared = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local gone_before = ARGV[8]

local has_more = false

-- Return how many seconds this sweep leaves between a moment and now.
local function delay_of(moment)
  return string.format('%.3f', tonumber(now) - tonumber(moment))
end

-- Return whether an earlier sweep, which left `delay`, reached so far beyond a moment of this one
-- that the clock was set back. A process with a shorter window reaches further too.
local function is_ahead(reached, moment, delay)
  return reached and tonumber(reached) - may_go_back > tonumber(moment)
    and (delay == delay_of(moment) or tonumber(reached) > tonumber(now))
end

-- Return up to `most` members with a score above `low` and up to `high`, and the score up to which
-- these are all.
local function page(key, low, high)
  local found = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  if #found < 2 * most then
    return found, high
  end
  has_more = true
  local last = found[#found]
  -- Members of equal scores are taken together, because the next page begins after that score.
  local equal = redis.call('ZRANGE', key, last, last, 'BYSCORE', 'WITHSCORES')
  local is_taken = {}
  for i = 1, #found, 2 do
    is_taken[found[i]] = true
  end
  for i = 1, #equal, 2 do
    if not is_taken[equal[i]] then
      found[#found + 1] = equal[i]
      found[#found + 1] = equal[i + 1]
    end
  end
  return found, last
end

local swept, turned, delay = unpack(redis.call('HMGET', edge, 'swept', 'turned', 'delay'))
local is_whole = swept and redis.call('EXISTS', seen, rooms) == 2
if is_ahead(swept, offline_before, delay)
  or (not is_whole and (swept or redis.call('EXISTS', rooms) == 1)) then
  -- The server has evicted a key, or its clock was set back. Nobody knows who of these is gone.
  redis.call('UNLINK', rooms, moves, earlier_moves, edge)
elseif is_whole and tonumber(swept) < tonumber(offline_before) then
  local is_asleep = redis.call('ZCOUNT', seen, '(' .. offline_before, '+inf') == 0
  if is_asleep then
    redis.call('UNLINK', rooms)
    redis.call('ZADD', rooms, -1, '')
    swept = offline_before
  else
    local gone
    gone, swept = page(seen, '(' .. swept, offline_before)
    for i = 1, #gone, 2 do
      redis.call('ZREM', rooms, gone[i])
    end
  end
  redis.call('HSET', edge, 'swept', swept, 'delay', delay_of(offline_before))
  if turned == '-inf' or tonumber(turned) < tonumber(now) - late then
    -- All moves that are dropped here were written before the last turn.
    redis.call('UNLINK', earlier_moves)
    if redis.call('EXISTS', moves) == 1 then
      redis.call('RENAME', moves, earlier_moves)
    end
    redis.call('HSET', edge, 'dropped', turned, 'turned', now)
  end
  for _, key in ipairs({rooms, moves, earlier_moves, edge}) do
    redis.call('EXPIRE', key, lifetime)
  end
end

if is_whole and compared > 0 then
  local ids = redis.call('ZRANDMEMBER', rooms, compared)
  local seen_at = #ids > 0 and redis.call('ZMSCORE', seen, unpack(ids))
  for n, id in ipairs(ids) do
    if id ~= '' and not (seen_at[n] and tonumber(seen_at[n]) > tonumber(swept)) then
      redis.call('ZREM', rooms, id)
    end
  end
end

if not cut or is_ahead(cut, gone_before, cut_delay) then
  reset(gone_before, delay_of(gone_before)) -- the first sweep, or the clock was set back
elseif tonumber(cut) < tonumber(gone_before) then
  local gone, new_cut = page(seen, '(' .. cut, gone_before)
  note_gone(goodbyes, gone)
  move_cut(new_cut, delay_of(gone_before))
end
announce(lifetime)

-- A goodbye that is written back must not raise a last-seen time above the cut.
local past = page(goodbyes, '-inf', cut or offline_before)
for i = 1, #past, 2 do
  redis.call('ZADD', seen, 'XX', 'GT', past[i + 1], past[i])
  redis.call('ZREM', goodbyes, past[i])
end
return {has_more and 1 or 0, announced.went}
