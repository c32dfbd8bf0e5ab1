-- The common beginning of depart_scored.lua and depart_minute_sets.lua. Comes after clock.lua.
--
-- ARGV[1]  the id
-- ARGV[2]  moment of the departure, in seconds since the epoch
-- ARGV[3]  1 to lower the moment to this server's clock; else 0
-- ARGV[4]  seconds for which a departure matters
-- ARGV[5]  seconds for which last-seen times are stored
-- ARGV[6]  maximum number of members of each key
-- ARGV[7]  SHA-1 of the id to erase it; empty to take it offline

local id, moment, is_server_time = ARGV[1], ARGV[2], ARGV[3] == '1'
local matters_seconds, last_seen_seconds = tonumber(ARGV[4]), ARGV[5]
local max_members, hash = tonumber(ARGV[6]), ARGV[7]

if is_server_time then
  moment = not_in_future(moment)
end

-- Add a member to a sorted set; remove the oldest members beyond the maximum.
local function add_bounded(key, member, score, lifetime)
  redis.call('ZADD', key, 'GT', score, member)
  redis.call('EXPIRE', key, lifetime)
  local excess = redis.call('ZCARD', key) - max_members
  if excess > 0 then
    redis.call('ZREMRANGEBYRANK', key, 0, excess - 1)
  end
end

-- Note the departure. `last_seen` is the last-seen time of the id, or false if it was not online.
local function note_departure(left, forgotten, gone, last_seen)
  local departures, member = left, id
  if hash ~= '' then
    redis.call('ZREM', left, id)
    redis.call('ZREM', gone, id)
    departures, member = forgotten, hash
  elseif last_seen then
    add_bounded(gone, id, last_seen, last_seen_seconds)
  end
  redis.call('ZREMRANGEBYSCORE', departures, '-inf', tonumber(moment) - matters_seconds)
  add_bounded(departures, member, moment, math.ceil(matters_seconds))
end
