-- KEYS: position, rows, order, tombstones. ARGV: the gateway, first, last, limit, and REV for descending. Returns
-- position, keys and values.
local keys
if ARGV[5] == 'REV' then
  keys = redis.call('ZRANGE', KEYS[3], ARGV[3], ARGV[2], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[4])
else
  keys = redis.call('ZRANGE', KEYS[3], ARGV[2], ARGV[3], 'BYLEX', 'LIMIT', 0, ARGV[4])
end
local position, values = own_position(), values_of(KEYS[2], keys)
local is_short = #keys < tonumber(ARGV[4]) or not are_all_there(values)
if position and is_short and not is_whole(KEYS[2], KEYS[3], KEYS[4]) then return damaged() end
return {position, keys, values}
