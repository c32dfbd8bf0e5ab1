-- Who is present, of a kind with rooms or events: a part of record.lua and of in_room.lua.
--
-- An id is present exactly if its score in `seen` is later than `cut`. Only such an id is in a room,
-- and only such an id has been announced online. So whoever moves a score or the cut past each other
-- calls `go`, or notes who came, in the same script, and an id cannot come or go twice.
--
-- KEYS[6]      progress: the cut and the moment at which it was moved: `rooms_until` and `rooms_at`, or
--              with events `announced_until` and `announced_at`; `n`, the number of the last entry
-- KEYS[7]      with rooms: id by the number of the room where it was last seen
-- KEYS[8]      with rooms: id by the moment at which it last entered or left one
-- KEYS[#KEYS]  with events, a seventh or ninth key: stream of the last five minutes. Each entry has a
--              single field: its number, with JSON as value. That is a list of `+id` or `-id`, each
--              before the moment since which the id is online, or at which it was last seen; or `null`,
--              after which nothing that was announced before counts; or `{}`, before which nothing was.
--
-- The number of an entry is that of the entry before it, plus the size of the JSON and ENTRY_BYTES. So
-- a reader notices a missing entry, and the numbers show how large the stream is.
--
-- Notes in the reply, from its fourth place on: how many ids came online, how many went offline, 1 if
-- the stream was too large to hold five minutes, and 1 if a sweep has left something to do.

local progress, rooms, moves = KEYS[6], KEYS[8] and KEYS[7], KEYS[8]
local stream = (KEYS[9] or not rooms) and progress and KEYS[#KEYS]
local STREAM_SECONDS, MAX_BYTES = 300, 64 * 1024 * 1024
local ENTRY_BYTES = 32 -- that an entry takes beside its JSON
local ENTRY_SIZE = 500 -- names and values: of 250 ids
local REMOVED_AT_ONCE = 100 -- entries, from a stream that is too large
local CUT = stream and 'announced_' or 'rooms_'
local changes, cut, cut_at = {}, false, false
if progress then cut, cut_at = unpack(redis.call('HMGET', progress, CUT .. 'until', CUT .. 'at')) end

local function move_cut(moment)
  cut, cut_at = moment, now
  redis.call('HSET', progress, CUT .. 'until', cut, CUT .. 'at', cut_at)
end

local function add_entry(packed)
  -- The time in microseconds, so that the numbers from before a loss of data do not return.
  local first_number = string.format('%.0f', clock * 1000000)
  if redis.call('HSETNX', progress, 'n', first_number) == 1 then
    packed = '{}'
    redis.call('UNLINK', stream) -- if there are entries, their numbers are of before a loss of data
  end
  local n = redis.call('HINCRBY', progress, 'n', #packed + ENTRY_BYTES)
  redis.call('XADD', stream, '*', n, packed)
  redis.call('EXPIRE', stream, STREAM_SECONDS)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][2]
  if n - first[1] > MAX_BYTES then
    redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - REMOVED_AT_ONCE)
    reply[6] = 1
  end
end

-- Begin again, because it is unknown who has been announced, and who has gone.
local function reset()
  -- In a deploy that sets PRESENCE_EVENTS, the rooms are known.
  if rooms and (cut or redis.call('EXISTS', progress) == 0) then
    redis.call('UNLINK', rooms, moves)
  end
  move_cut(offline_before)
  if stream then add_entry('null') end
end

local function leave_room(id)
  for _, key in ipairs({rooms, moves}) do redis.call('ZREM', key, id) end
end

local function announce(sign, place, id, moment)
  if not stream then return end
  changes[#changes + 1], changes[#changes + 2] = sign .. id, moment
  reply[place] = reply[place] + 1
end

-- Note that an id with a score goes: at `moment`, or else when it was last seen.
local function go(id, score, moment)
  leave_room(id)
  if cut and score + 0 > cut + 0 then
    announce('-', 5, id, moment or later(score, redis.call('ZSCORE', bye, id)))
  end
end

-- Take ids that are no longer online out of their rooms, announce that they have gone, and give ids
-- that said goodbye a window ago their true last-seen time. Two arguments follow the first: after how
-- many seconds no late write can change that an id has gone; and how many of each sort a step takes.
local function sweep()
  local gone_after, most = unpack(ARGV, FIRST)
  local gone_before = string.format('%.6f', now - gone_after)

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
    -- A process without rooms may have removed ids from `seen`: some are looked up, at random.
    local ids = redis.call('ZRANDMEMBER', rooms, most)
    for n, score in ipairs(#ids > 0 and redis.call('ZMSCORE', seen, unpack(ids)) or {}) do
      if not score or score + 0 <= cut + 0 then leave_room(ids[n]) end
    end
  end
  -- A goodbye that is written back must not raise a last-seen time above the cut.
  local past = page(bye, '-inf', cut or gone_before)
  for i = 1, #past, 2 do
    redis.call('ZADD', seen, 'XX', 'GT', past[i + 1], past[i])
    redis.call('ZREM', bye, past[i])
  end
end
