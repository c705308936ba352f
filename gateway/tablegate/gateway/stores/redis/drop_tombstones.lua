-- Removes old tombstones, which nobody needs to refuse a stale record any more.
-- KEYS: rows, tombstones. ARGV: time before which they go, how many at most. Returns how many went.
local keys = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)
local gone = {}
for i, value in ipairs(values_of(KEYS[1], keys)) do
  if not value or struct.unpack('>i8', value, 22) >= tonumber(ARGV[1]) then break end
  gone[i] = keys[i]
end
call_many('HDEL', KEYS[1], gone)
call_many('ZREM', KEYS[2], gone)
return #gone
