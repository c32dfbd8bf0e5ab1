-- Pick the highest minute of each step, so that a long history is a short reply.
--
-- KEYS[1]  the samples of a day (hash: count by minute of the day)
-- ARGV     minutes in a step; the first minute of the day, where a step begins; the last minute
--
-- Reply: "minute count minute count ...", oldest first. Of equal counts, the first minute is picked.
local step, first, last = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local minutes = {}
for minute = first, last do minutes[#minutes + 1] = minute end
local counts, reply = redis.call('HMGET', KEYS[1], unpack(minutes)), {}
for start = 1, #minutes, step do
  local highest = start
  for n = start + 1, math.min(start + step - 1, #minutes) do
    if (counts[n] or -1) + 0 > (counts[highest] or -1) + 0 then highest = n end
  end
  if counts[highest] then table.insert(reply, minutes[highest] .. ' ' .. counts[highest]) end
end
return table.concat(reply, ' ')
