-- Gives a partition another incarnation where it went back: what expires now need not be what expired there before.
-- KEYS: position. ARGV: the first bytes of the position that was known to be stored, and the other incarnation. Nothing
-- is done where another gateway has done so.
local stored, known = redis.call('HGET', KEYS[1], 'at'), ARGV[1]
if not stored or string.sub(stored, 47, 54) ~= string.sub(known, 48, 55) or not is_before(stored, known) then return end
redis.call('HSET', KEYS[1], 'at', string.sub(stored, 1, 46) .. ARGV[2] .. string.sub(stored, 55))
