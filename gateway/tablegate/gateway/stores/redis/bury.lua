-- Removes what is left of a gateway that is gone.
-- KEYS: gateways; states, status and places of one that is gone. ARGV: the gateway, how long it must have been away, in
-- ms; then places of which it has nothing any more. Where those were all, nothing is left of it; returns whether.
local seen = redis.call('HGET', KEYS[1], ARGV[1])
if not seen or now_ms() - seen < tonumber(ARGV[2]) then return 0 end
call_many('SREM', KEYS[4], {unpack(ARGV, 3)})
if redis.call('SCARD', KEYS[4]) > 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return redis.call('HDEL', KEYS[1], ARGV[1])
