-- What the scripts of departures have in common; it stands before each of them.
--
-- ARGV[1]  the id
-- ARGV[2]  the moment
-- ARGV[3]  1 if that is at most now by this server's clock; else 0
-- ARGV[4]  seconds for which departures matter
-- ARGV[5]  seconds for which last-seen times are kept
-- ARGV[6]  how many members each key may have
-- ARGV[7]  SHA-1 of the id to erase it; empty to take it offline

local id, moment, has_server_time = ARGV[1], ARGV[2], ARGV[3] == '1'
local matters, kept, most, hash = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]

if has_server_time then
  local time = redis.call('TIME')
  local now = time[1] .. '.' .. string.format('%06d', time[2])
  if tonumber(moment) > tonumber(now) then
    moment = now
  end
end

local function note(key, member, score, lifetime)
  redis.call('ZADD', key, 'GT', score, member)
  redis.call('EXPIRE', key, lifetime)
  local excess = redis.call('ZCARD', key) - most
  if excess > 0 then
    redis.call('ZREMRANGEBYRANK', key, 0, excess - 1)
  end
end
