-- Takes a partition from gateways, and removes some of it once nobody keeps it. KEYS: as of write.lua.
-- ARGV[1]: how many rows and changes at most; then the gateways that keep it no more. Returns how many rows and changes
-- went, and how many are left; where another gateway keeps them, none are.
local position, rows, order, tombstones, history, repairs, index_keys, index_entries, indexes = unpack(KEYS)
local left = tonumber(ARGV[1])
call_many('HDEL', position, {unpack(ARGV, 2)})
if redis.call('HLEN', position) > redis.call('HEXISTS', position, 'at') then return {0, 0} end
redis.call('DEL', position)
redis.call('UNLINK', repairs, index_keys, index_entries, indexes)
for _, key in ipairs({order, tombstones}) do
  local keys = {}
  for i, text in ipairs(left > 0 and redis.call('ZPOPMIN', key, left) or {}) do
    if i % 2 == 1 then keys[#keys + 1] = text end
  end
  call_many('HDEL', rows, keys)
  left = left - #keys
end
local changes = redis.call('XLEN', history)
local cut = math.min(left, changes)
if cut > 0 then redis.call('XTRIM', history, 'MAXLEN', changes - cut) end
local rest = redis.call('ZCARD', order) + redis.call('ZCARD', tombstones) + changes - cut
if rest == 0 then redis.call('UNLINK', rows, history) end
return {tonumber(ARGV[1]) - left + cut, rest}
