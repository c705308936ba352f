-- KEYS: position, history. ARGV: the gateway, first id, last id, limit. Returns position and entries.
return {own_position(), redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[3], 'COUNT', ARGV[4])}
