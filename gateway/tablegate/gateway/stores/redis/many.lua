-- Calls with more arguments than the stack of Lua takes.

local MANY = 1000  -- arguments of a call: Lua's stack takes 8,000

local function call_many(command, key, arguments)
  for from = 1, #arguments, MANY do
    redis.call(command, key, unpack(arguments, from, math.min(from + MANY - 1, #arguments)))
  end
end

local function values_of(rows, keys)
  local values = {}
  for from = 1, #keys, MANY do
    local found = redis.call('HMGET', rows, unpack(keys, from, math.min(from + MANY - 1, #keys)))
    for i = 1, #found do values[from + i - 1] = found[i] end
  end
  return values
end
