-- KEYS: position, rows. ARGV: the gateway; then keys. Returns position and values.
return {own_position(), values_of(KEYS[2], {unpack(ARGV, 2)})}
