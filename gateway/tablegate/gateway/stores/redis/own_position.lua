-- What scripts that read return first.

local function own_position()  -- the position, as this gateway has it
  local phase, at = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'at'))
  return phase and at and phase .. at
end
