-- What scripts that read return first.

local function held()  -- the position, as this gateway has it
  local phase, at = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'at'))
  return phase and at and phase .. at
end
