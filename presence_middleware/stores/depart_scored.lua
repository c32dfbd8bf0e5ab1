-- The common beginning of depart_sorted_set.lua and depart_swept_set.lua, after departing.lua: take
-- an id out of the sorted set of last-seen times.
--
-- The departure may have waited for a server that was away. An id that was seen after its
-- departure stays online.
--
-- KEYS[1]  sorted set: id by last-seen time
-- KEYS[2]  sorted set: id by the moment of its logout
-- KEYS[3]  sorted set: SHA-1 of an erased id by the moment of its erasure
-- KEYS[4]  sorted set: departed id by last-seen time
-- KEYS[5]  sorted set: process by the moment of its last write, as in scored.lua
-- ARGV     as in departing.lua
--
-- Reply of both scripts: the moment at which the departure counts.

local seen, left, forgotten, gone, writers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local last_seen = redis.call('ZSCORE', seen, id)
if last_seen and tonumber(last_seen) > tonumber(moment) then
  last_seen = false
end
if last_seen then
  redis.call('ZREM', seen, id)
  if redis.call('EXISTS', seen) == 0 then
    -- The sorted set is empty, so a missing key is no sign of lost data.
    redis.call('ZREM', writers, '')
  end
end
