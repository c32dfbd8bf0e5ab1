-- Apply what people did to one kind in one shard: sightings first, then departures, so that whoever
-- was seen after a departure stays online. A sighting may wait in one process while its user logs out
-- in another, so both are compared and written in the same step.
--
-- KEYS[1] seen      id by last-seen time; a goodbye lowers it
-- KEYS[2] bye       id by true last-seen time, of those who said goodbye less than a window ago
-- KEYS[3] gone      id by last-seen time, of those who left; never an id that is in `seen`
-- KEYS[4] left      id by the moment it left, and erasures: see people.lua
-- KEYS[5] writers   process by its last write; and the empty name while `seen` has members
-- KEYS[6…]          keys of the hooks: see rooms.lua and events.lua
--
-- ARGV and the reply are those of people.lua.

local seen, bye, gone, left, writers, progress = unpack(KEYS)
local MOST_EVICTED = 1000

include 'people'

local hooks = {}

local function remove(id, act, moment, last_seen)
  for _, hook in ipairs(hooks) do hook.before_departure(act, id, moment, last_seen) end
  if last_seen then
    redis.call('ZREM', seen, id)
    redis.call('ZREM', bye, id)
  end
end

local members = redis.call('ZCARD', seen)
if members == 0 then
  local is_lost = redis.call('ZSCORE', writers, '')
  -- The server evicted `seen` alone. Without this key, every process writes again.
  if is_lost then redis.call('DEL', writers, bye) end
  for _, hook in ipairs(hooks) do hook.seen_is_empty(is_lost) end
end

if FIRST_DEPARTURE > FIRST then
  local added = 0
  local room = max_members - members
  if #ids <= room then room = false end -- for all of them
  local departed = redis.call('ZCOUNT', left, earliest, '+inf')
  local goodbyes = redis.call('ZCOUNT', bye, earliest, '+inf')
  if departed + goodbyes == 0 and not room and #hooks == 0 then
    added = redis.call('ZADD', seen, 'GT', unpack(ARGV, FIRST, FIRST_DEPARTURE - 1))
  else
    local known, new, is_seen = {}, 0, {}
    if room then
      known = redis.call('ZMSCORE', seen, unpack(ids))
      for n, id in ipairs(ids) do
        is_seen[id] = true
        if not known[n] then new = new + 1 end
      end
    end
    if room and new > room then
      -- Remove ids that are offline, but only as many as are needed, and none that is seen now. There
      -- are many too many after PRESENCE_MAX_MEMBERS was lowered.
      local most = math.min(new - room + #ids, MOST_EVICTED)
      local offline = redis.call('ZRANGE', seen, '-inf', offline_before, 'BYSCORE', 'LIMIT', 0, most)
      for _, id in ipairs(offline) do
        if new > room and not is_seen[id] then
          local score, goodbye = redis.call('ZSCORE', seen, id), redis.call('ZSCORE', bye, id)
          remove(id, LEFT, now, later(score, goodbye))
          room = room + 1
        end
      end
    end
    local accepted, to_write = nil, {}
    accepted, ids = accept(departed, known, room, scores_since(bye, goodbyes, ids))
    for m, id in ipairs(ids) do
      to_write[2 * m - 1], to_write[2 * m] = ARGV[FIRST + 2 * accepted[m] - 2], id
    end
    for _, hook in ipairs(hooks) do hook.before_seen(ids, accepted) end
    if #ids > 0 then added = redis.call('ZADD', seen, 'GT', unpack(to_write)) end
  end
  if added > 0 and redis.call('EXISTS', gone) == 1 then redis.call('ZREM', gone, unpack(ids)) end
end

apply_departures(function(act, id, moment)
  local score, goodbye = redis.call('ZSCORE', seen, id), redis.call('ZSCORE', bye, id)
  local last_seen = score and later(score, goodbye) -- a lowered score is no evidence
  if not at_least(moment, last_seen or 0) then last_seen = false end -- seen since then: it stays
  if act ~= GOODBYE then
    remove(id, act, moment, last_seen)
    return last_seen, score
  end
  local lowered = string.format('%.6f', moment - lowered_by)
  if last_seen and not at_least(lowered, score) then
    for _, hook in ipairs(hooks) do hook.before_departure(act, id, moment, last_seen) end
    redis.call('ZADD', seen, lowered, id)
    redis.call('ZADD', bye, moment, id)
    redis.call('EXPIRE', bye, lifetime)
  end
end)

if redis.call('EXPIRE', seen, lifetime) == 1 then
  redis.call('ZADD', writers, 'inf', '')
else
  redis.call('ZREM', writers, '')
end
note_write()
for _, hook in ipairs(hooks) do hook.reply(reply) end
return reply
