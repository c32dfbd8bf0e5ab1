-- Announce who came online and who went offline. Comes before swept_set.lua, sweep.lua and
-- depart_swept_set.lua.
--
-- An id has been announced online exactly if its last-seen time is later than the `cut`. So whoever
-- moves a last-seen time or the cut announces it in the same script, and an id cannot come or go
-- twice.
--
-- KEYS[1]          sorted set: id by last-seen time
-- KEYS[#KEYS - 1]  hash: `cut`, in seconds since the epoch; `delay`, how many seconds a sweep left
--                  between the cut and now; `n`, the number of the last entry
-- KEYS[#KEYS]      stream: entries with their number `n`, then `+id` or `-id` and the moment since
--                  which the id is online, or at which it was last seen; or with `reset`, after
--                  which nothing that was announced before counts

local stream = KEYS[#KEYS]
local MAX_ENTRIES, STREAM_SECONDS = 4000, 300
local ENTRY_SIZE = 500 -- names and values: of 250 ids
local cut, cut_delay = unpack(redis.call('HMGET', KEYS[#KEYS - 1], 'cut', 'delay'))
local changes = {}
local announced = {came = 0, went = 0}

local function add_entry(...)
  local n = redis.call('HINCRBY', KEYS[#KEYS - 1], 'n', 1)
  redis.call('XADD', stream, 'MAXLEN', '~', MAX_ENTRIES, '*', 'n', n, ...)
  redis.call('EXPIRE', stream, STREAM_SECONDS)
end

local function move_cut(moment, delay)
  cut = moment
  redis.call('HSET', KEYS[#KEYS - 1], 'cut', moment, 'delay', delay)
end

-- Begin again, because it is unknown who has been announced. The delay is empty if this is
-- no sweep.
local function reset(moment, delay)
  move_cut(moment, delay)
  add_entry('reset', moment)
end

local function is_announced(last_seen)
  return last_seen and cut and tonumber(last_seen) > tonumber(cut)
end

-- Note that ids have gone: id and last-seen time in turn.
local function note_gone(goodbyes, gone)
  for i = 1, #gone, 2 do
    if is_announced(gone[i + 1]) then
      local goodbye = redis.call('ZSCORE', goodbyes, gone[i])
      local is_later = goodbye and tonumber(goodbye) > tonumber(gone[i + 1])
      changes[#changes + 1] = '-' .. gone[i]
      changes[#changes + 1] = is_later and goodbye or gone[i + 1]
      announced.went = announced.went + 1
    end
  end
end

-- Note which ids come online with their sightings, which are not written yet: from `first` to `last`,
-- time and id in turn.
local function note_arrivals(seen, goodbyes, window, offline_before, sightings, first, last)
  local ids, count, is_noted = {}, 0, {}
  for i = first + 1, last, 2 do
    count = count + 1
    ids[count] = sightings[i]
  end
  local before = redis.call('ZMSCORE', seen, unpack(ids))
  -- Whoever was seen since then is online, whatever the times of these sightings. Arithmetic
  -- converts the text faster than tonumber.
  local online_since = math.max(cut + 0, offline_before + 0)
  for n = 1, count do
    local last_seen = before[n]
    if not last_seen or last_seen + 0 <= online_since then
      local time = sightings[first + 2 * n - 2]
      if time + 0 > cut + 0 and not is_noted[ids[n]] then
        local is_online = is_announced(last_seen)
        if is_online and last_seen + 0 <= time - window then
          -- The window ended, and the sweep has not announced it yet.
          note_gone(goodbyes, {ids[n], last_seen})
          is_online = false
        end
        if not is_online then
          is_noted[ids[n]] = true -- a guest may have two sightings in a write
          changes[#changes + 1] = '+' .. ids[n]
          changes[#changes + 1] = time
          announced.came = announced.came + 1
        end
      end
    end
  end
end

-- Write what was noted, in entries of their own.
local function announce(lifetime)
  for first = 1, #changes, ENTRY_SIZE do
    add_entry(unpack(changes, first, math.min(first + ENTRY_SIZE - 1, #changes)))
  end
  local remaining = redis.call('PTTL', KEYS[1])
  if remaining > 0 then
    -- When the last-seen times expire, nobody announces who has gone: then nothing counts any more.
    redis.call('PEXPIRE', KEYS[#KEYS - 1], remaining)
  else
    redis.call('EXPIRE', KEYS[#KEYS - 1], lifetime)
  end
end
