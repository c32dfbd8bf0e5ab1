-- Pick the highest minute of each step, so that a long history is a short reply.
--
-- KEYS[1]  the samples of a day (hash: count by minute of the day)
-- ARGV     minutes in a step; the first minute of the day, where a step begins; the last minute
--
-- Reply: "minute count minute count ...", oldest first. Of equal counts, the first minute is picked.
local step, first, last = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local minutes = {}
for minute = first, last do minutes[#minutes + 1] = minute end
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
