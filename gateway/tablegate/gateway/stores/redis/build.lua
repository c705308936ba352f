-- Adds entries of rows to an index that is not whole.
-- KEYS: rows, index_keys, index_entries, indexes. ARGV: the id of the index, how far it was and how far it is then; then
-- of each row key, offset and version, and packed index keys of this index. Returns whether the index is as far as that
-- now: nothing is done where it is elsewhere already.
local rows, index_keys, index_entries, indexes = unpack(KEYS)
if redis.call('HGET', indexes, ARGV[1]) ~= ARGV[2] then return 0 end
local keys, packed = {}, {}
for i = 4, #ARGV, 3 do keys[#keys + 1] = ARGV[i] end
local stored = values_of(index_keys, keys)
local same = {}
for i, value in ipairs(values_of(rows, keys)) do
  -- Whoever has changed a row since it was read has put its entries there, or has sent the index back.
  if value and string.sub(value, 1, 20) == ARGV[3 * i + 2] then
    same[#same + 1] = keys[i]
    -- Those of other indexes stay: another gateway may keep them.
    packed[keys[i]] = packed_without(stored[i], ARGV[1]) .. ARGV[3 * i + 3]
  end
end
put_entries(index_keys, index_entries, same, packed)
redis.call('HSET', indexes, ARGV[1], ARGV[3])
return 1
