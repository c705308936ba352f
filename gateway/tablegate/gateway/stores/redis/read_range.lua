-- KEYS: position, rows, order. ARGV: the gateway, first, last, limit, and REV for descending. Returns position, keys
-- and values.
local keys
if ARGV[5] == 'REV' then
  keys = redis.call('ZRANGE', KEYS[3], ARGV[3], ARGV[2], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[4])
else
  keys = redis.call('ZRANGE', KEYS[3], ARGV[2], ARGV[3], 'BYLEX', 'LIMIT', 0, ARGV[4])
end
return {own_position(), keys, values_of(KEYS[2], keys)}
