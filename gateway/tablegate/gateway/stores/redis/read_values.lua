-- KEYS: position, rows, order, tombstones. ARGV: the gateway; then keys. Returns position and values.
local position, values = own_position(), values_of(KEYS[2], {unpack(ARGV, 2)})
if position and not are_all_there(values) and not is_whole(KEYS[2], KEYS[3], KEYS[4]) then return damaged() end
return {position, values}
