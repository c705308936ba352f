-- Removes rows that are expired; they enter the history as deletes at the next offset, before its record.
-- ARGV[4]: the time; then keys. Returns the position that is stored, and how many rows there were; nothing: went back.
if went_back(nil) then return {} end
local keys, seen = {}, {}
for i = 5, #ARGV do
  if not seen[ARGV[i]] then seen[ARGV[i]] = true; keys[#keys + 1] = ARGV[i] end
end
local found = values_of(rows, keys)
local gone, values = {}, {}
for i, key in ipairs(keys) do
  if is_row(found[i]) then gone[#gone + 1] = key; values[#gone] = found[i] end
end
call_many('HDEL', rows, gone)
call_many('HDEL', repairs, keys)
call_many('ZREM', order, gone)
if redis.call('EXISTS', index_keys) == 1 then put_entries(index_keys, index_entries, gone, {}) end
if stored and string.byte(stored, 29) ~= $RESTORING and #gone > 0 then
  local next_offset = number(stored, 13)
  local order_before = last_offset == next_offset and last_order or 0
  local history_start = has_newest(history, stored) and number(stored, 31) or next_offset
  for i, key in ipairs(gone) do
    remember(next_offset, order_before + i, {key, values[i]}, tonumber(ARGV[4]), true, values[i])
  end
  stored = save(string.sub(stored, 13, 30), bound(history_start), string.sub(stored, 47))
end
return {phase and stored and phase .. stored, #gone}
