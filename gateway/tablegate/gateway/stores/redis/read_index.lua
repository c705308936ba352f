-- KEYS: position, rows, index_entries, indexes, index_keys. ARGV: the gateway, the id of the index, first, last, limit,
-- and REV for descending. Returns position, how far the index is, members and the values of their rows.
local members
if ARGV[6] == 'REV' then
  members = redis.call('ZRANGE', KEYS[3], ARGV[4], ARGV[3], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[5])
else
  members = redis.call('ZRANGE', KEYS[3], ARGV[3], ARGV[4], 'BYLEX', 'LIMIT', 0, ARGV[5])
end
local keys = {}
for i, member in ipairs(members) do
  local at = $INDEX_ID_BYTES + struct.unpack('>I2', member, #member - 1)
  keys[i] = string.sub(member, at + 1, -3)
end
local position, values = own_position(), values_of(KEYS[2], keys)
local has_both = redis.call('EXISTS', KEYS[3]) == redis.call('EXISTS', KEYS[5])
if position and not (has_both and are_all_there(values)) then return damaged() end
return {position, redis.call('HGET', KEYS[4], ARGV[2]), members, values}
