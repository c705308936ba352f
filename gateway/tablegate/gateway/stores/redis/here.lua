-- KEYS: gateways. ARGV: the gateway that is here.
return redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now_ms()))
