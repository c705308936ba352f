-- Finds the copy of a changelog that gateways share, or names a new one.
-- KEYS: copies. ARGV: name, store id and incarnation of a new one; then the store ids that are not wanted. Returns
-- store id and incarnation.
local found = redis.call('HGET', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  if found and string.match(found, '^%d+') == ARGV[i] then found = false end
end
if not found then
  found = ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], found)
end
return found
