-- Who left: a part of record.lua and of minute_sets.lua, which have the same names for keys and
-- arguments. KEYS and ARGV are theirs.
--
-- An erased id is in `left` as a space and the SHA-1 of the id; and a space alone is there, just after
-- the last erasure. No id begins with a space, so no client can forge such a member.

local SEEN, GOODBYE, LEFT, ERASED = '0', '1', '2', '3'
-- fakeredis has no redis.sha1hex, but there a script can reach Python.
local sha1hex = redis.sha1hex
  or python.eval('lambda id: __import__("hashlib").sha1(id).hexdigest().encode()')

-- Arithmetic converts text faster than tonumber.
local function at_least(score, moment) return score and score + 0 >= moment + 0 end
local function erased(id) return ' ' .. sha1hex(id) end

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

local left_at, may_be_erased = {}, false
local function has_left(id, since)
  return at_least(left_at[id], since) or may_be_erased and at_least(left_at[erased(id)], since)
end

-- Find out for `has_left` which of `ids` are among the `count` who left since the first arrival.
local function find_departures(ids, count)
  local names = {unpack(ids)}
  may_be_erased = count > 0 and at_least(redis.call('ZSCORE', left, ' '), earliest)
  for _, id in ipairs(may_be_erased and ids or {}) do names[#names + 1] = erased(id) end
  left_at = scores_since(left, count, names)
end

-- Return whether the server lost the last-seen time of an id that is in no other key.
local function is_lost(id, moment, last_known)
  return last_known ~= '' and at_least(moment, last_known)
    and not at_least(redis.call('ZSCORE', left, erased(id)), last_known)
end

-- Apply the departures in a range of ARGV. `take_out` takes an id offline, and returns its last-seen
-- time unless it was seen since then.
local function apply_departures(first, last, take_out)
  if first > last then return end
  local time = redis.call('TIME')
  local clock = time[1] .. '.' .. string.format('%06d', time[2])
  for i = first, last, 4 do
    local act, id, moment, last_known = unpack(ARGV, i, i + 3)
    -- A moment in the future would refuse whoever comes back.
    if is_server_time == '1' and at_least(moment, clock) then moment = clock end
    if act == SEEN then -- a site touches the id, so that nothing of this instant is refused
      redis.call('ZREM', left, id)
    else
      local last_seen = take_out(act, id, moment, last_known)
      if act == ERASED then
        redis.call('ZREM', gone, id)
        redis.call('ZREM', left, id)
        -- If old members are dropped, the space goes after the erasures that it stands for.
        redis.call('ZADD', left, 'GT', moment, erased(id), string.format('%.6f', moment + 1e-6), ' ')
      elseif act == LEFT then
        if last_seen then redis.call('ZADD', gone, 'GT', last_seen, id) end
        redis.call('ZADD', left, 'GT', moment, id)
      end
    end
  end
  redis.call('ZREMRANGEBYSCORE', left, '-inf', now - matters)
  for key, seconds in pairs({[gone] = lifetime, [left] = math.ceil(matters)}) do
    redis.call('EXPIRE', key, seconds)
    local excess = redis.call('ZCARD', key) - max_members
    if excess > 0 then redis.call('ZREMRANGEBYRANK', key, 0, excess - 1) end
  end
end
