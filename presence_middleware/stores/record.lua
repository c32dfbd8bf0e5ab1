-- Apply what people did to one kind in one shard: sightings first, then departures, so that whoever
-- was seen after a departure stays online. A sighting may wait in one process while its user logs out
-- in another, so both are compared and written in the same step.
--
-- KEYS[1] seen      id by last-seen time; a goodbye lowers it
-- KEYS[2] bye       id by true last-seen time, of those who said goodbye less than a window ago
-- KEYS[3] gone      id by last-seen time, of those who left; never an id that is in `seen`
-- KEYS[4] left      id, or a space and the SHA-1 of an erased id, by the moment it left; and a space
--                   alone, just after the last erasure. No id begins with a space, so no client can
--                   forge such a member.
-- KEYS[5] writers   process by its last write; and the empty name while `seen` has members
-- KEYS[6…]          keys of the hooks: see rooms.lua and events.lua
-- ARGV              the names below in their order; then time and id of each sighting; then act, id,
--                   moment and last-seen time (or nothing) of each departure; then of each move the
--                   position of its sighting, the number of the room, and the moment
--
-- Moments are seconds since the epoch.
--
-- Reply: the positions of refused sightings, how many new ids found no room, and the previous write of
-- this process (or nothing); then what the hooks add.

local seen, bye, gone, left, writers, progress = unpack(KEYS)
local lifetime, -- of the keys, in seconds
  window, -- seconds for which an id is online after it was seen
  lowered_by, -- how far before its moment a goodbye lowers the last-seen time, in seconds
  matters, -- seconds for which a departure is compared with sightings
  max_members,
  is_server_time, -- 1 to lower departures to this server's clock; else 0
  process, -- empty to note no write
  now,
  offline_before, -- ids last seen up to this moment are no longer online
  earliest, -- the first arrival or move among the sightings
  arrivals, -- of all sightings, separated by spaces; empty if they equal the times
  sightings, -- their number
  departures -- their number
  = unpack(ARGV, 1, 13)
local FIRST, FIRST_DEPARTURE = 14, 14 + 2 * sightings
local FIRST_MOVE = FIRST_DEPARTURE + 4 * departures
local SEEN, GOODBYE, LEFT, ERASED = '0', '1', '2', '3'
local MOST_EVICTED = 1000
-- fakeredis has no redis.sha1hex, but there a script can reach Python.
local sha1hex = redis.sha1hex
  or python.eval('lambda id: __import__("hashlib").sha1(id).hexdigest().encode()')

-- Arithmetic converts text faster than tonumber.
local function at_least(score, moment) return score and score + 0 >= moment + 0 end
local function later(one, other) return at_least(other, one or other or 0) and other or one end
local function erased(id) return ' ' .. sha1hex(id) end

local left_at, may_be_erased = {}, false
local function has_left(id, since)
  return at_least(left_at[id], since) or may_be_erased and at_least(left_at[erased(id)], since)
end

local hooks = {}

local function remove(id, act, moment, last_seen)
  for _, hook in ipairs(hooks) do hook.before_departure(act, id, moment, last_seen) end
  if last_seen then
    redis.call('ZREM', seen, id)
    redis.call('ZREM', bye, id)
  end
end

-- Return the scores since the first arrival, by member: of all members if these are few, for that is
-- faster than to look up each of `names`.
local function scores_since(key, count, names)
  local scores = {}
  if 4 * count <= sightings + 0 then
    local found = redis.call('ZRANGE', key, earliest, '+inf', 'BYSCORE', 'WITHSCORES')
    for i = 1, #found, 2 do scores[found[i]] = found[i + 1] end
  else
    for n, score in ipairs(redis.call('ZMSCORE', key, unpack(names))) do scores[names[n]] = score end
  end
  return scores
end

local members = redis.call('ZCARD', seen)
if members == 0 then
  local is_lost = redis.call('ZSCORE', writers, '')
  -- The server evicted `seen` alone. Without this key, every process writes again.
  if is_lost then redis.call('DEL', writers, bye) end
  for _, hook in ipairs(hooks) do hook.seen_is_empty(is_lost) end
end
local reply = {{}, 0, process ~= '' and redis.call('ZSCORE', writers, process)}

if FIRST_DEPARTURE > FIRST then
  local ids, accepted, added = {}, {}, 0
  for i = FIRST + 1, FIRST_DEPARTURE - 1, 2 do ids[#ids + 1] = ARGV[i] end
  local room = max_members - members
  local is_tight = #ids > room
  local departed = redis.call('ZCOUNT', left, earliest, '+inf')
  local goodbyes = redis.call('ZCOUNT', bye, earliest, '+inf')
  if departed + goodbyes == 0 and not is_tight and #hooks == 0 then
    added = redis.call('ZADD', seen, 'GT', unpack(ARGV, FIRST, FIRST_DEPARTURE - 1))
  else
    local names, known, new, is_seen = {unpack(ids)}, {}, 0, {}
    may_be_erased = departed > 0 and at_least(redis.call('ZSCORE', left, ' '), earliest)
    for _, id in ipairs(may_be_erased and ids or {}) do names[#names + 1] = erased(id) end
    left_at = scores_since(left, departed, names)
    local goodbye_at = scores_since(bye, goodbyes, ids)
    if is_tight then
      known = redis.call('ZMSCORE', seen, unpack(ids))
      for n, id in ipairs(ids) do
        is_seen[id] = true
        if not known[n] then new = new + 1 end
      end
    end
    if new > room then
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
    local to_write, accepted_ids, arrived = {}, {}, string.gmatch(arrivals, '%S+')
    for n, id in ipairs(ids) do
      local time = ARGV[FIRST + 2 * n - 2]
      local arrival = arrived() or time
      if has_left(id, arrival) then
        table.insert(reply[1], n)
      elseif is_tight and not known[n] and room <= 0 then
        reply[2] = reply[2] + 1
      elseif not at_least(goodbye_at[id], later(time, arrival)) then -- an older one undoes no goodbye
        if not known[n] then room = room - 1 end
        accepted[#accepted + 1], accepted_ids[#accepted_ids + 1] = n, id
        to_write[#to_write + 1], to_write[#to_write + 2] = time, id
      end
    end
    for _, hook in ipairs(hooks) do hook.before_seen(accepted, accepted_ids) end
    if #accepted > 0 then added = redis.call('ZADD', seen, 'GT', unpack(to_write)) end
    ids = accepted_ids
  end
  if added > 0 and redis.call('EXISTS', gone) == 1 then redis.call('ZREM', gone, unpack(ids)) end
end

if FIRST_MOVE > FIRST_DEPARTURE then
  local time = redis.call('TIME')
  local clock = time[1] .. '.' .. string.format('%06d', time[2])
  for i = FIRST_DEPARTURE, FIRST_MOVE - 1, 4 do
    local act, id, moment, last_known = unpack(ARGV, i, i + 3)
    -- A moment in the future would refuse whoever comes back.
    if is_server_time == '1' and at_least(moment, clock) then moment = clock end
    local score, goodbye = redis.call('ZSCORE', seen, id), redis.call('ZSCORE', bye, id)
    local last_seen = score and later(score, goodbye) -- a lowered score is no evidence
    if not at_least(moment, last_seen or 0) then last_seen = false end -- seen since then: it stays
    local lowered = string.format('%.6f', moment - lowered_by)
    if act == SEEN then -- a site touches the id, so that nothing of this instant is refused
      redis.call('ZREM', left, id)
    elseif act ~= GOODBYE then
      remove(id, act, moment, last_seen)
      local hash = erased(id)
      if not score and last_known ~= '' and at_least(moment, last_known)
        and not at_least(redis.call('ZSCORE', left, hash), last_known) then
        last_seen = last_known -- the server lost it
      end
      if act == ERASED then
        redis.call('ZREM', gone, id)
        redis.call('ZREM', left, id)
        -- If old members are dropped, this one goes after the erasures that it stands for.
        redis.call('ZADD', left, 'GT', string.format('%.6f', moment + 1e-6), ' ')
      elseif last_seen then
        redis.call('ZADD', gone, 'GT', last_seen, id)
      end
      redis.call('ZADD', left, 'GT', moment, act == ERASED and hash or id)
    elseif last_seen and not at_least(lowered, score) then
      for _, hook in ipairs(hooks) do hook.before_departure(act, id, moment, last_seen) end
      redis.call('ZADD', seen, lowered, id)
      redis.call('ZADD', bye, moment, id)
      redis.call('EXPIRE', bye, lifetime)
    end
  end
  redis.call('ZREMRANGEBYSCORE', left, '-inf', now - matters)
  for key, seconds in pairs({[gone] = lifetime, [left] = math.ceil(matters)}) do
    redis.call('EXPIRE', key, seconds)
    local excess = redis.call('ZCARD', key) - max_members
    if excess > 0 then redis.call('ZREMRANGEBYRANK', key, 0, excess - 1) end
  end
end

if redis.call('EXPIRE', seen, lifetime) == 1 then
  redis.call('ZADD', writers, 'inf', '')
else
  redis.call('ZREM', writers, '')
end
if process ~= '' then redis.call('ZADD', writers, now, process) end
redis.call('EXPIRE', writers, lifetime)
for _, hook in ipairs(hooks) do hook.reply(reply) end
return reply
