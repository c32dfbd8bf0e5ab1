-- Apply what people did to one kind in one shard: sightings first, then departures, so that whoever
-- was seen after a departure stays online. A sighting may wait in one process while its user logs out
-- in another, so both are compared and written in the same step.
--
-- KEYS[1] seen      id by last-seen time; a goodbye lowers it
-- KEYS[2] bye       id by true last-seen time, of those who said goodbye less than a window ago
-- KEYS[3] gone      id by last-seen time, of those who left; never an id that is in `seen`
-- KEYS[4] left      id by the moment it left, and erasures: see people.lua
-- KEYS[5] writers   process by its last write; and the empty name while `seen` has members
-- KEYS[6…]          with rooms or events: see presence.lua
--
-- ARGV and the reply are those of people.lua. A call without people is a sweep: see presence.lua.

local seen, bye, gone, left, writers = unpack(KEYS)

include 'people'
local offline_before = string.format('%.6f', now - window) -- ids last seen until then are offline
include 'presence'

local function remove(id, score)
  go(id, score)
  for _, key in ipairs({seen, bye}) do redis.call('ZREM', key, id) end
end

local members = redis.call('ZCARD', seen)
if members == 0 then
  if rooms then redis.call('UNLINK', rooms, moves) end
  if redis.call('ZSCORE', writers, '') then
    -- The server evicted `seen` alone. Without this key, every process writes again.
    redis.call('DEL', writers, bye)
    cut = false
  end
end
if progress and not cut then reset() end

if #ids > 0 then
  local room, known = max_members - members, {}
  if #ids > room then
    -- Remove ids that are offline, but only as many as are needed, and none that is seen now. There
    -- are many too many after PRESENCE_MAX_MEMBERS was lowered.
    known = redis.call('ZMSCORE', seen, unpack(ids))
    local new, is_seen = 0, {}
    for n, id in ipairs(ids) do
      is_seen[id] = true
      if not known[n] then new = new + 1 end
    end
    local most = math.min(new - room + #ids, MOST_REMOVED)
    local offline = redis.call('ZRANGE', seen, '-inf', offline_before, 'BYSCORE', 'LIMIT', 0, most)
    for _, id in ipairs(offline) do
      if new > room and not is_seen[id] then
        remove(id, redis.call('ZSCORE', seen, id))
        room = room + 1
      end
    end
  end
  local accepted, words = accept(room, known, scores_since(bye))
  if #accepted > 0 then
    if stream or cut and redis.call('ZCOUNT', seen, '(' .. cut, offline_before) > 0 then
      -- Whoever was offline meanwhile has gone, even if no sweep has found out yet.
      local scores, has_come = redis.call('ZMSCORE', seen, unpack(accepted)), {}
      for n, id in ipairs(accepted) do
        local score, time = has_come[id] or scores[n] or 0, words[2 * n - 1]
        local is_over = score + 0 <= time - window
        if is_over then
          go(id, score)
        elseif at_least(offline_before, score) then
          leave_room(id) -- readers have counted it as gone, because this write is late
        end
        if (is_over or score + 0 <= cut + 0) and time + 0 > cut + 0 then
          has_come[id] = math.huge -- a guest may have two sightings in a write
          announce('+', 4, id, time)
        end
      end
    end
    -- Processes write in any order. The latest move of an id since it left decides where it is.
    for i = FIRST_MOVE, #ARGV do
      local position, number, moment = string.match(ARGV[i], '(%S+) (%S+) (%S+)')
      local n = tonumber(position)
      local time, id = ARGV[FIRST + 2 * n - 2], ids[n]
      if not is_dropped[n] and not at_least(redis.call('ZSCORE', moves, id), moment)
        and not has_left(id, moment) and later(time, moment) + 0 > later(cut, offline_before) + 0 then
        redis.call('ZADD', moves, moment, id)
        if number == '0' then redis.call('ZREM', rooms, id) else redis.call('ZADD', rooms, number, id) end
      end
    end
    if redis.call('ZADD', seen, 'GT', unpack(words)) > 0 and redis.call('EXISTS', gone) == 1 then
      redis.call('ZREM', gone, unpack(accepted))
    end
  end
end

finish(function(act, id, moment, latest)
  local score, goodbye = redis.call('ZSCORE', seen, id), redis.call('ZSCORE', bye, id)
  local last_seen = later(score, goodbye) -- a lowered score is no evidence, or removed
  if not is_over(last_seen, latest, slack) then last_seen = false end -- seen since then: it stays
  local lowered = string.format('%.6f', moment - lowered_by)
  if act ~= GOODBYE then
    if last_seen then remove(id, score or 0) end
    if rooms and at_least(moment, redis.call('ZSCORE', moves, id) or 0) then leave_room(id) end
  elseif last_seen and not at_least(lowered, score or 0) then
    -- It may be so late that its window is over.
    if at_least(cut, lowered) then go(id, score, moment) end
    redis.call('ZADD', seen, lowered, id)
    redis.call('ZADD', bye, moment, id)
    redis.call('EXPIRE', bye, lifetime)
  end
  return last_seen, score or goodbye
end)

if FIRST_MOVE == FIRST then
  sweep()
else
  redis.call('ZREM', writers, '')
  if redis.call('EXPIRE', seen, lifetime) == 1 then redis.call('ZADD', writers, 'inf', '') end
  redis.call('EXPIRE', writers, lifetime)
end
if progress then
  for first = 1, #changes, ENTRY_SIZE do
    add_entry(cjson.encode({unpack(changes, first, first + ENTRY_SIZE - 1)}))
  end
  local oldest = string.format('%.0f', (clock - STREAM_SECONDS) * 1000)
  if stream then redis.call('XTRIM', stream, 'MINID', oldest) end
  -- When the last-seen times of who is present expire, nobody announces who has gone: nothing counts.
  local remaining = redis.call('ZCOUNT', seen, '(' .. cut, '+inf') > 0 and redis.call('PTTL', seen) or 0
  redis.call('PEXPIRE', progress, remaining > 0 and remaining or 1000 * lifetime)
  -- While PRESENCE_ROOMS is empty, nobody leaves a room. Who is in one is unknown after a window.
  for _, key in ipairs({rooms, moves}) do redis.call('EXPIRE', key, math.ceil(window + slack)) end
end
return reply
