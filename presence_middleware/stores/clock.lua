-- The common beginning of departing.lua and goodbye.lua.

-- Return a moment, lowered to this server's clock: seconds since the epoch, as text.
local function not_in_future(moment)
  local time = redis.call('TIME')
  local now = time[1] .. '.' .. string.format('%06d', time[2])
  return tonumber(moment) > tonumber(now) and now or moment
end
