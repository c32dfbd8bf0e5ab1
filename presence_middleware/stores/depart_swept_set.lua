-- Take an id offline, or erase it, that may be in a room and may have said goodbye. Comes after
-- depart_scored.lua, and events.lua or no_events.lua.
--
-- KEYS[6…]  as KEYS[5…] in swept_set.lua

local goodbyes, rooms, moves, earlier_moves = KEYS[6], KEYS[7], KEYS[8], KEYS[9]

if last_seen then
  note_gone(goodbyes, {id, last_seen})
  announce(last_seen_seconds)
  local goodbye = redis.call('ZSCORE', goodbyes, id)
  if goodbye and tonumber(goodbye) > tonumber(last_seen) then
    last_seen = goodbye -- the goodbye has lowered the last-seen time
  end
  redis.call('ZREM', goodbyes, id)
end
local moved_at = redis.call('HGET', moves, id) or redis.call('HGET', earlier_moves, id)
if not moved_at or tonumber(moved_at) <= tonumber(moment) then
  redis.call('ZREM', rooms, id)
end
if hash ~= '' then
  redis.call('ZREM', goodbyes, id)
  redis.call('HDEL', moves, id)
  redis.call('HDEL', earlier_moves, id)
end
note_departure(left, forgotten, gone, last_seen)
return moment
