-- KEYS: position, history. ARGV: the gateway, first id, last id, limit. Returns position and entries.
local position = own_position()
if position and not has_newest(KEYS[2], string.sub(position, 2)) then return damaged() end
return {position, redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[3], 'COUNT', ARGV[4])}
