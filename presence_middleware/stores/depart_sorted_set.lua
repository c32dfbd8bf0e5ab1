-- Take an id offline in a sorted set of ids by last-seen time, or erase it. Comes after
-- depart_scored.lua.

note_departure(left, forgotten, gone, last_seen)
return moment
