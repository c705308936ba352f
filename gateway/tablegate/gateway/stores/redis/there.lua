-- KEYS: gateways. ARGV: for how long, in ms. Returns those that were here within that time.
local names, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now_ms() - all[i + 1] < tonumber(ARGV[1]) then names[#names + 1] = all[i] end
end
return names
