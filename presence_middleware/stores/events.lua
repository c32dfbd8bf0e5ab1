-- Announce who comes online and who goes offline: a part of record.lua and of sweep.lua.
--
-- An id has been announced online exactly if its score in `seen` is later than `cut`. So whoever moves
-- a score or the cut announces it in the same script, and an id cannot come or go twice.
--
-- KEYS[6]      progress: `announced_until`, which is the cut; `announced_delay`, how many seconds a
--              sweep left between the cut and now; `n`, the number of the last entry
-- KEYS[#KEYS]  events: entries with their number `n`, then `+id` or `-id` and the moment since which
--              the id is online, or at which it was last seen; or with `reset`, after which nothing
--              that was announced before counts
--
-- Adds to the reply of record.lua: how many ids came online, and how many went offline.

local stream = KEYS[#KEYS]
local MAX_ENTRIES, STREAM_SECONDS = 4000, 300
local ENTRY_SIZE = 500 -- names and values: of 250 ids
local cut, cut_delay = unpack(redis.call('HMGET', progress, 'announced_until', 'announced_delay'))
local changes, came, went = {}, 0, 0

local function add_entry(...)
  local n = redis.call('HINCRBY', progress, 'n', 1)
  redis.call('XADD', stream, 'MAXLEN', '~', MAX_ENTRIES, '*', 'n', n, ...)
  redis.call('EXPIRE', stream, STREAM_SECONDS)
end

local function move_cut(moment, delay)
  cut = moment
  redis.call('HSET', progress, 'announced_until', moment, 'announced_delay', delay)
end

-- Begin again, because it is unknown who has been announced.
local function reset(moment, delay)
  move_cut(moment, delay)
  add_entry('reset', moment)
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

  before_seen = function(accepted)
    if not cut then reset(offline_before, '') end
    if #accepted == 0 then return end
    local ids, is_noted = {}, {}
    for m, n in ipairs(accepted) do ids[m] = ARGV[FIRST + 2 * n - 1] end
    local scores = redis.call('ZMSCORE', seen, unpack(ids))
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
      add_entry(unpack(changes, first, math.min(first + ENTRY_SIZE - 1, #changes)))
    end
    -- When the last-seen times expire, nobody announces who has gone: then nothing counts any more.
    local remaining = redis.call('PTTL', seen)
    redis.call('PEXPIRE', progress, remaining > 0 and remaining or 1000 * lifetime)
    reply[#reply + 1], reply[#reply + 2] = came, went
  end,
}
