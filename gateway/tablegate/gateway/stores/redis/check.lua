-- KEYS: position, rows, order, tombstones, index_keys, index_entries, history. Returns whether the partition, if there
-- is one, has all its keys.
local at = redis.call('HGET', KEYS[1], 'at')
if not at then return 1 end
local has_both = redis.call('EXISTS', KEYS[5]) == redis.call('EXISTS', KEYS[6])
return is_whole(KEYS[2], KEYS[3], KEYS[4]) and has_both and has_newest(KEYS[7], at) and 1 or 0
