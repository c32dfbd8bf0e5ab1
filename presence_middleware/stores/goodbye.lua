-- Let the window of an id end soon, because it closed its page.
--
-- The same id may have other pages open, also on other devices. So its last-seen time is only
-- lowered, and its next sighting raises it again.
--
-- KEYS[1]  sorted set: id by last-seen time
-- KEYS[2]  sorted set: id by the moment of its goodbye
-- KEYS[3]  hash: as KEYS[8] in swept_set.lua
-- ARGV[1]  the id
-- ARGV[2]  moment of the goodbye, in seconds since the epoch
-- ARGV[3]  1 to lower the moment to this server's clock; else 0
-- ARGV[4]  by how many seconds before the moment the last-seen time is lowered
-- ARGV[5]  lifetime of KEYS[2], in seconds
--
-- Reply: the moment at which the goodbye counts.

local seen, goodbyes, edge = KEYS[1], KEYS[2], KEYS[3]
local id, moment = ARGV[1], ARGV[2]

if ARGV[3] == '1' then
  local time = redis.call('TIME')
  local now = time[1] .. '.' .. string.format('%06d', time[2])
  if tonumber(moment) > tonumber(now) then
    moment = now
  end
end
local lowered = tonumber(moment) - tonumber(ARGV[4])
-- A sweep looks at last-seen times after the last one: below that, nobody would notice the goodbye.
for _, done in ipairs({'swept', 'cut'}) do
  local moment_done = redis.call('HGET', edge, done)
  if moment_done then
    lowered = math.max(lowered, tonumber(moment_done) + 0.000001)
  end
end
lowered = string.format('%.6f', lowered)
local last_seen = redis.call('ZSCORE', seen, id)
local earlier = redis.call('ZSCORE', goodbyes, id)
if last_seen and tonumber(last_seen) <= tonumber(moment)
  and tonumber(last_seen) > tonumber(lowered)
  and not (earlier and tonumber(earlier) >= tonumber(moment)) then
  redis.call('ZADD', seen, lowered, id)
  redis.call('ZADD', goodbyes, 'GT', moment, id)
  redis.call('EXPIRE', goodbyes, ARGV[5])
end
return moment
