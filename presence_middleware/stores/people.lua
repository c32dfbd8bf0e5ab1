-- What record.lua and minute_sets.lua share: their arguments, who may be written, and who departs.
--
-- KEYS  they name `left`, `gone` and `writers`
-- ARGV  the words below in their order, with a space after each; then time and id of each sighting;
--       then act, id, moment and last-seen time (or nothing) of each departure; then of each move the
--       position of its sighting, the number of the room, and the moment, with spaces between them.
--       Moments are seconds since the epoch.
--
-- Reply: the ids of refused sightings, how many new ids found no room, and the previous write of
-- this process (or nothing); then what presence.lua notes.
--
-- An erased id is in `left` as a space and the SHA-1 of the id; and a space alone is there, just after
-- the last erasure. Two spaces are there since a departure that had waited for a window: others may
-- have waited as long. No id begins with a space, so no client can forge such a member.

local lifetime, -- of the keys, in seconds
  window, -- seconds for which an id is online after it was seen
  lowered_by, -- how far before its moment a goodbye lowers the last-seen time, in seconds
  slack, -- seconds beyond a window for which a departure is compared with sightings; clocks differ less
  is_server_time, -- 1 to lower departures to this server's clock; else 0
  max_members,
  process, -- empty to note no write
  since, -- for how many seconds its last write must have been there; empty if there need be none
  now,
  earliest, -- the first arrival or move among the sightings
  sightings, -- their number
  departures, -- their number
  arrivals -- of all sightings, separated by spaces; empty if they equal the times
  = string.match(ARGV[1], string.rep('(%S*) ', 12) .. '(.*)')
local MOST_REMOVED = 1000 -- from each key, because a command must stay short
local FIRST, FIRST_DEPARTURE, FIRST_MOVE = 2, 2 + 2 * sightings, 2 + 2 * sightings + 4 * departures
local SEEN, GOODBYE, LEFT, ERASED = '0', '1', '2', '3'
local reply = {{}, 0, false, 0, 0, 0, 0}
local clock = string.format('%d.%06d', unpack(redis.call('TIME'))) -- of this server; may be set back
local ids, left_at, is_dropped, departed, may_be_erased = {}, {}, {}, {}, false
for n = 1, sightings do ids[n] = ARGV[FIRST + 2 * n - 1] end
local sha1hex = redis.sha1hex -- fakeredis has none, but there a script can reach Python
  or python.eval('lambda id: __import__("hashlib").sha1(id).hexdigest().encode()')

-- Arithmetic converts text faster than tonumber.
local function at_least(score, moment) return score and score + 0 >= moment + 0 end
local function later(one, other) return at_least(other, one or other) and other or one end
local function erased(id) return ' ' .. sha1hex(id) end
local function is_ahead(score, by) return is_server_time == '1' and at_least(score, clock + (by or 0)) end
local function is_over(score, latest, by) return at_least(latest, score or 0) or is_ahead(score, by) end
local function has_left(id, since)
  return at_least(left_at[id], since)
    or may_be_erased and at_least(redis.call('ZSCORE', left, erased(id)), since)
end

-- Return the scores of the ids since the first arrival. If few members are so new, all are read, for
-- that is faster than to look up each id.
local function scores_since(key)
  local scores, recent, few = {}, {}, math.floor(sightings / 4) + 1
  local found = redis.call('ZRANGE', key, earliest, '+inf', 'BYSCORE', 'LIMIT', 0, few, 'WITHSCORES')
  if #found == 0 then return scores end
  for i = 1, #found, 2 do recent[found[i]] = found[i + 1] end
  local looked_up = #found == 2 * few and redis.call('ZMSCORE', key, unpack(ids)) or {}
  for n, id in ipairs(ids) do scores[id] = looked_up[n] or recent[id] end
  return scores
end

-- Return the ids to write, and what ZADD writes. Note the others in the reply and in `is_dropped`. If
-- there are more ids than `room`, only so many that are not `known` are written. `goodbye_at` has
-- goodbyes by id, which no older sighting undoes. A sighting may be all that is known of who left.
local function accept(room, known, goodbye_at)
  local arrived, accepted, words = string.gmatch(arrivals, '%S+'), {}, {}
  if #ids <= room then room = false end -- for all of them
  left_at, may_be_erased = scores_since(left), at_least(redis.call('ZSCORE', left, ' '), earliest)
  if not (room or may_be_erased or next(left_at) or next(goodbye_at)) then
    return ids, {unpack(ARGV, FIRST, FIRST_DEPARTURE - 1)}
  end
  for n, id in ipairs(ids) do
    local time, is_new = ARGV[FIRST + 2 * n - 2], room and not known[n]
    local arrival = arrived() or time
    is_dropped[n] = true
    if has_left(id, arrival) then
      table.insert(reply[1], id)
      local departure = {LEFT, id, left_at[id], time, arrival}
      if at_least(left_at[id], time) then table.insert(departed, departure) end
    elseif is_new and room <= 0 then
      reply[2] = reply[2] + 1
    elseif not at_least(goodbye_at[id], later(time, arrival)) then
      if is_new then room = room - 1 end
      is_dropped[n], accepted[#accepted + 1] = nil, id
      words[#words + 1], words[#words + 2] = time, id
    end
  end
  return accepted, words
end

-- Note the write, and apply the departures. The caller sets the lifetime of `writers`. `take_out` takes
-- an id offline that was not seen after the upper bound `latest`. It returns its last-seen time unless
-- it was seen since then, and whether it had any.
local function finish(take_out)
  if process ~= '' then
    reply[3] = redis.call('ZSCORE', writers, process)
    -- After a loss of data, this reply may get lost as well: then the next shows the loss.
    if since == '' or at_least(reply[3], now - since) then redis.call('ZADD', writers, now, process) end
  end
  for i = FIRST_DEPARTURE, FIRST_MOVE - 1, 4 do table.insert(departed, {unpack(ARGV, i, i + 3)}) end
  if #departed == 0 then return end
  for _, departure in ipairs(departed) do
    local act, id, latest, last_known, arrival = unpack(departure)
    -- A moment in the future would refuse whoever comes back.
    local moment = is_ahead(latest) and clock or latest
    if act == SEEN then -- a site touches the id, so that nothing of this instant is refused
      redis.call('ZREM', left, id)
    else
      if act ~= GOODBYE and at_least(now - window, moment) then redis.call('ZADD', left, now, '  ') end
      local last_seen, is_known = take_out(act, id, moment, latest)
      if act == ERASED then -- what followed it may have been written before
        if is_over(redis.call('ZSCORE', gone, id), latest) then redis.call('ZREM', gone, id) end
        if is_over(redis.call('ZSCORE', left, id), latest) then redis.call('ZREM', left, id) end
        -- If old members are dropped, the space goes after the erasures that it stands for.
        redis.call('ZADD', left, 'GT', moment, erased(id), string.format('%.6f', moment + 1e-6), ' ')
      elseif act == LEFT and at_least(moment, redis.call('ZSCORE', left, erased(id)) or 0) then
        if not is_known and last_known ~= '' and at_least(moment, last_known)
          and not at_least(redis.call('ZSCORE', left, erased(id)), arrival or last_known) then
          last_seen = last_known -- the server lost it
        end
        if last_seen then redis.call('ZADD', gone, 'GT', last_seen, id) end
        redis.call('ZADD', left, 'GT', moment, id)
      end
    end
  end
  local are_needed = at_least(redis.call('ZSCORE', left, '  '), now - window - slack)
  local old = redis.call('ZCOUNT', left, '-inf', are_needed and 0 or now - window - slack)
  for key, age in pairs({[gone] = lifetime, [left] = math.ceil(window + slack)}) do
    redis.call('EXPIRE', key, age)
    local size = redis.call('ZCARD', key)
    local most = math.max(size - max_members, key == left and old or 0) -- the oldest of too many
    redis.call('ZREMRANGEBYRANK', key, 0, math.min(most, MOST_REMOVED) - size - 1)
  end
end
