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
local reply, size = {}, 0
for first = 1, #minutes, step do
  local highest, place = -1, nil
  for n = first, math.min(first + step - 1, #minutes) do
    local count = tonumber(counts[n])
    if count and count > highest then highest, place = count, n end
  end
  if place then
    reply[size + 1], reply[size + 2] = minutes[place], counts[place]
    size = size + 2
  end
end
return table.concat(reply, ' ')
