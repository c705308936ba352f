-- Lets a gateway take part in a partition that others keep.
-- KEYS: position. ARGV: the gateway. Returns the position, as this gateway has it from now on, and who had it before;
-- nothing: there is none.
local stored, had = redis.call('HGET', KEYS[1], 'at'), redis.call('HKEYS', KEYS[1])
if not stored then return {} end
local phase = string.char(string.byte(stored, 29) == $RESTORING and $RESTORING or $CATCHING_UP)
redis.call('HSET', KEYS[1], ARGV[1], phase)
return {phase .. stored, had}
