-- Apply what people did to the sets of the ids of each minute: departures, or sightings of one minute.
-- The departures of a write are sent first: whoever was seen after them is added again.
--
-- KEYS[1] left     as in record.lua
-- KEYS[2] gone     id that left, by the minute of its last sighting
-- KEYS[3] writers  process by its last write
-- KEYS[4…]         for departures the sets of consecutive minutes; for sightings the set of their
--                  minute, then those of the other minutes of a window, the nearest first
-- ARGV             the names below in their order; then the id of each sighting; then act, id, moment
--                  and last-seen time (or nothing) of each departure
--
-- Moments are seconds since the epoch.
--
-- Reply: the positions of refused sightings, how many new ids found no room, and the previous write of
-- this process (or nothing).

local left, gone, writers = unpack(KEYS)
local lifetime, -- of the keys, in seconds
  matters, -- seconds for which a departure is compared with sightings
  max_members, -- of all sets together; of each other key
  is_server_time, -- 1 to lower departures to this server's clock; else 0
  process, -- empty to note no write
  now,
  earliest, -- the first arrival
  arrivals, -- of all sightings, separated by spaces
  first_minute, -- the start of the minute of the first set, for departures
  sightings -- their number
  = unpack(ARGV, 1, 10)
local FIRST, FIRST_DEPARTURE, FIRST_SET = 11, 11 + sightings, 4

include 'departures'

local reply = {{}, 0, process ~= '' and redis.call('ZSCORE', writers, process)}
if process ~= '' then
  redis.call('ZADD', writers, now, process)
  redis.call('EXPIRE', writers, lifetime)
end

if FIRST_DEPARTURE > FIRST then
  local ids, to_add, known, room = {unpack(ARGV, FIRST, FIRST_DEPARTURE - 1)}, {}, {}, max_members + 0
  for i = FIRST_SET, #KEYS do room = room - redis.call('SCARD', KEYS[i]) end
  local is_tight = #ids > room
  for i = FIRST_SET, is_tight and #KEYS or 0 do
    for n, is_member in ipairs(redis.call('SMISMEMBER', KEYS[i], unpack(ids))) do
      known[n] = known[n] or is_member == 1
    end
  end
  find_departures(ids, redis.call('ZCOUNT', left, earliest, '+inf'))
  local arrived = string.gmatch(arrivals, '%S+')
  for n, id in ipairs(ids) do
    local arrival = arrived()
    if has_left(id, arrival) then
      table.insert(reply[1], n)
    elseif is_tight and not known[n] and room <= 0 then
      reply[2] = reply[2] + 1
    else
      if not known[n] then room = room - 1 end
      to_add[#to_add + 1] = id
    end
  end
  if #to_add > 0 then
    redis.call('SADD', KEYS[FIRST_SET], unpack(to_add))
    redis.call('EXPIRE', KEYS[FIRST_SET], lifetime)
  end
end

apply_departures(FIRST_DEPARTURE, #ARGV, function(_, id, moment, last_known)
  local last_seen = is_lost(id, moment, last_known) and last_known - last_known % 60
  for n = FIRST_SET, #KEYS do
    local minute = first_minute + (n - FIRST_SET) * 60
    if minute <= moment + 0 and redis.call('SREM', KEYS[n], id) == 1 then last_seen = minute end
  end
  return last_seen
end)
return reply
