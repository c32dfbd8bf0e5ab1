-- Pick the highest minute of each step, so that a long history is a short reply.
--
-- KEYS[1]  the samples of a day (hash: count by minute of the day)
-- ARGV[1]  minutes in a step
-- ARGV[2]  the first minute of the day to look at, where a step begins
-- ARGV[3]  the last minute
--
-- Reply: "minute count minute count ...", oldest first. Of equal counts, the first minute is picked.
local step = tonumber(ARGV[1])
local minutes = {}
for minute = tonumber(ARGV[2]), tonumber(ARGV[3]) do minutes[#minutes + 1] = minute end
local counts = redis.call('HMGET', KEYS[1], unpack(minutes))
local reply, size, current, highest = {}, 0, -1, 0
for n, minute in ipairs(minutes) do
  local count, place = tonumber(counts[n]), math.floor((n - 1) / step)
  if count and (place ~= current or count > highest) then
    if place ~= current then size, current = size + 2, place end
    highest, reply[size - 1], reply[size] = count, minute, counts[n]
  end
end
return table.concat(reply, ' ')
