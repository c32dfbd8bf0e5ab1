-- Who is in which room: a part of record.lua and of sweep.lua. An id is in one room at most: where it
-- was last seen. Until a sweep, that may be somebody who is no longer online: in_room.lua looks.
--
-- KEYS[6] progress  `rooms_until`, up to which last-seen time ids have been taken out of their rooms;
--                   `rooms_delay`, how many seconds a sweep left between that and now; `moves_since`,
--                   up to which moment moves have been dropped; `rooms_told`, up to which last-seen
--                   time a reader counted ids as gone that no sweep had reached
-- KEYS[7] rooms     id by the number of its room; and the empty id by -1, so that the key exists as
--                   long as `rooms_until` does
-- KEYS[8] moves     id by the moment at which it last entered or left a room, of a window

local rooms, moves = KEYS[7], KEYS[8]
local FIELDS = {'rooms_until', 'rooms_delay', 'moves_since', 'rooms_told'}
local swept, swept_delay, moves_since, told = unpack(redis.call('HMGET', progress, unpack(FIELDS)))

local function forget_rooms()
  redis.call('UNLINK', rooms, moves)
  redis.call('HDEL', progress, unpack(FIELDS))
  swept, moves_since, told = false, false, false
end

hooks[#hooks + 1] = {
  seen_is_empty = forget_rooms, -- or evicted: nobody knows who of these is gone

  before_seen = function(ids, accepted)
    if told and #ids > 0 and told + 0 > swept + 0 then
      for n, score in ipairs(redis.call('ZMSCORE', seen, unpack(ids))) do
        if score and score + 0 <= told + 0 then redis.call('ZREM', rooms, ids[n]) end
      end
    end
    if FIRST_MOVE > #ARGV then return end
    if not swept or redis.call('EXISTS', rooms) == 0 then -- the first move, or the key was evicted
      forget_rooms()
      swept = offline_before
      redis.call('HSET', progress, 'rooms_until', swept, 'rooms_delay', '')
      redis.call('ZADD', rooms, -1, '')
    end
    local is_accepted = {}
    for _, n in ipairs(accepted) do is_accepted[n] = true end
    for i = FIRST_MOVE, #ARGV, 3 do
      -- Processes write in any order. The latest move of an id since it left decides where it is.
      local n, number, moment = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
      local time, id = ARGV[FIRST + 2 * n - 2], ARGV[FIRST + 2 * n - 1]
      if is_accepted[n] and not at_least(redis.call('ZSCORE', moves, id) or moves_since, moment)
        and not has_left(id, moment) and later(time, moment) + 0 > swept + 0 then
        redis.call('ZADD', moves, moment, id)
        redis.call('ZREM', rooms, id)
        if number ~= '0' then redis.call('ZADD', rooms, number, id) end
      end
    end
  end,

  before_departure = function(act, id, moment)
    local is_out = at_least(moment, redis.call('ZSCORE', moves, id) or 0)
    -- A goodbye may be so late that the sweep has passed the end of its window.
    if act == GOODBYE then is_out = at_least(swept, moment - lowered_by) end
    if is_out then redis.call('ZREM', rooms, id) end
    if act == ERASED then redis.call('ZREM', moves, id) end
  end,

  sweep = function()
    local is_whole = swept and redis.call('EXISTS', seen, rooms) == 2
    if not is_whole or is_ahead(swept, offline_before, swept_delay) then
      return forget_rooms() -- the server has evicted a key, or its clock was set back
    end
    if swept + 0 < offline_before + 0 then
      local past
      past, swept = page(seen, '(' .. swept, offline_before)
      for i = 1, #past, 2 do redis.call('ZREM', rooms, past[i]) end
      local delay = delay_of(offline_before)
      redis.call('HSET', progress, 'rooms_until', swept, 'rooms_delay', delay)
    end
    local old, dropped = page(moves, '-inf', moves_before)
    for i = 1, #old, 2 do redis.call('ZREM', moves, old[i]) end
    if #old > 0 then redis.call('HSET', progress, 'moves_since', dropped) end
    local ids = redis.call('ZRANDMEMBER', rooms, compared)
    for n, score in ipairs(#ids > 0 and redis.call('ZMSCORE', seen, unpack(ids)) or {}) do
      -- A process without rooms may have removed the id from `seen`.
      local is_online = score and score + 0 > swept + 0
      if ids[n] ~= '' and not is_online then redis.call('ZREM', rooms, ids[n]) end
    end
  end,

  reply = function()
    for _, key in ipairs({rooms, moves, progress}) do redis.call('EXPIRE', key, lifetime) end
  end,
}
