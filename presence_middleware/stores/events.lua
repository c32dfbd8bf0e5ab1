-- Announce who comes online and who goes offline: a part of record.lua and of sweep.lua.
--
-- An id has been announced online exactly if its score in `seen` is later than `cut`. So whoever moves
-- a score or the cut announces it in the same script, and an id cannot come or go twice.
--
-- KEYS[6]      progress: `announced_until`, which is the cut; `announced_delay`, how many seconds a
--              sweep left between the cut and now; `n`, the number of the last entry
-- KEYS[#KEYS]  stream of the last five minutes. Each entry has a single field: its number, with JSON as
--              value. That is a list of `+id` or `-id`, each before the moment since which the id is
--              online, or at which it was last seen; or `null`, after which nothing that was announced
--              before counts; or `{}`, before which nothing was announced.
--
-- The number of an entry is that of the entry before it, plus the size of the JSON and ENTRY_BYTES. So a
-- reader notices a missing entry, and the numbers show how large the stream is.
--
-- Notes in the reply, from its fourth place on: how many ids came online, how many went offline, and 1
-- if entries of less than five minutes were removed, because the stream was too large.

local stream = KEYS[#KEYS]
local STREAM_SECONDS, MAX_BYTES = 300, 64 * 1024 * 1024
local ENTRY_BYTES = 32 -- that an entry takes beside its JSON
local ENTRY_SIZE = 500 -- names and values: of 250 ids
local REMOVED_AT_ONCE = 100 -- entries, from a stream that is too large
local is_shortened = 0
local cut, cut_delay = unpack(redis.call('HMGET', progress, 'announced_until', 'announced_delay'))
local changes, came, went = {}, 0, 0

local function add_entry(packed)
  if redis.call('HEXISTS', progress, 'n') == 0 then
    -- The time in microseconds, so that the numbers from before a loss of data do not return.
    local time = redis.call('TIME')
    redis.call('HSET', progress, 'n', time[1] .. string.format('%06d', time[2]))
    packed = '{}'
  end
  local n = redis.call('HINCRBY', progress, 'n', #packed + ENTRY_BYTES)
  redis.call('XADD', stream, '*', n, packed)
  redis.call('EXPIRE', stream, STREAM_SECONDS)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][2]
  if n - first[1] > MAX_BYTES then
    redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - REMOVED_AT_ONCE)
    is_shortened = 1
  end
end

local function move_cut(moment, delay)
  cut = moment
  redis.call('HSET', progress, 'announced_until', moment, 'announced_delay', delay)
end

-- Begin again, because it is unknown who has been announced.
local function reset(moment, delay)
  move_cut(moment, delay)
  add_entry('null')
end

local function note_gone(id, score, last_seen)
  if cut and score and score + 0 > cut + 0 then
    changes[#changes + 1], changes[#changes + 2] = '-' .. id, last_seen
    went = went + 1
  end
end

hooks[#hooks + 1] = {
  seen_is_empty = function(is_lost)
    if is_lost then reset(offline_before, '') end
  end,

  before_seen = function(ids, accepted)
    if not cut then reset(offline_before, '') end
    if #ids == 0 then return end
    local scores, is_noted = redis.call('ZMSCORE', seen, unpack(ids)), {}
    -- Whoever was seen since then is online, whatever the times of these sightings.
    local online_since = math.max(cut + 0, offline_before + 0)
    for m, id in ipairs(ids) do
      local score, time = scores[m], ARGV[FIRST + 2 * accepted[m] - 2]
      if not (score and score + 0 > online_since) and time + 0 > cut + 0 and not is_noted[id] then
        local is_over = not score or score + 0 <= time - window
        if is_over then -- the sweep may not have announced it yet
          note_gone(id, score, score and later(score, redis.call('ZSCORE', bye, id)))
        end
        if is_over or score + 0 <= cut + 0 then
          is_noted[id] = true -- a guest may have two sightings in a write
          changes[#changes + 1], changes[#changes + 2] = '+' .. id, time
          came = came + 1
        end
      end
    end
  end,

  before_departure = function(act, id, moment, last_seen)
    -- A goodbye may be so late that its window is over.
    local is_gone = last_seen and (act ~= GOODBYE or at_least(cut, moment - lowered_by))
    local moment_gone = act == GOODBYE and moment or last_seen
    if is_gone then note_gone(id, redis.call('ZSCORE', seen, id), moment_gone) end
  end,

  sweep = function()
    if not cut or is_ahead(cut, gone_before, cut_delay) then
      reset(gone_before, delay_of(gone_before)) -- the first sweep, or the clock was set back
    elseif cut + 0 < gone_before + 0 then
      local past, reached = page(seen, '(' .. cut, gone_before)
      for i = 1, #past, 2 do
        note_gone(past[i], past[i + 1], later(past[i + 1], redis.call('ZSCORE', bye, past[i])))
      end
      move_cut(reached, delay_of(gone_before))
    end
    return cut
  end,

  reply = function(reply)
    for first = 1, #changes, ENTRY_SIZE do
      local last = math.min(first + ENTRY_SIZE - 1, #changes)
      add_entry(cjson.encode({unpack(changes, first, last)}))
    end
    local time = redis.call('TIME')
    local oldest = (time[1] - STREAM_SECONDS) .. string.format('%03d', time[2] / 1000)
    redis.call('XTRIM', stream, 'MINID', oldest)
    -- When the last-seen times expire, nobody announces who has gone: then nothing counts any more.
    local remaining = redis.call('PTTL', seen)
    redis.call('PEXPIRE', progress, remaining > 0 and remaining or 1000 * lifetime)
    reply[4], reply[5], reply[6] = came, went, is_shortened
  end,
}
