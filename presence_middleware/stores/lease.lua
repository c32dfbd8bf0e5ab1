-- Take, renew or give up the lease of those who read events under a name, and store what the holder
-- has handled. One process at a time holds the lease.
--
-- KEYS[1]  hash: `who` holds the lease; `until`, in seconds since the epoch; `at`, the place up to
--          which events have been handled
-- ARGV[1]  who asks
-- ARGV[2]  for how long it may hold the lease, in seconds; 0 to give the lease up
-- ARGV[3]  the place up to which it has handled events; empty if it has not begun
-- ARGV[4]  the place at which a name begins that is not known yet
-- ARGV[5]  lifetime of the key, in seconds
--
-- Reply: nothing if another process holds the lease, or if it was given up. Else 1 if the process
-- held it before, or 0 if it took it now; and the place at which to go on.

local key = KEYS[1]
local me, seconds, handled, start, lifetime = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local who, lease_end, at = unpack(redis.call('HMGET', key, 'who', 'until', 'at'))
local is_mine, left = who == me, lease_end and lease_end - now or 0

if is_mine and handled ~= '' then
  at = handled
  redis.call('HSET', key, 'at', at)
end
if seconds + 0 == 0 then
  if is_mine then redis.call('HDEL', key, 'who', 'until') end
  return false
end
-- A lease that lasts longer than any was taken before the clock was set back.
if who and not is_mine and left > 0 and left <= seconds + 0 then return false end
at = at or start
redis.call('HSET', key, 'who', me, 'until', string.format('%.6f', now + seconds), 'at', at)
redis.call('EXPIRE', key, lifetime)
return {is_mine and 1 or 0, at}
