-- Returns whether a history has the newest change that a stored position says, unless that is before its start: the key
-- may be gone alone.
local function has_newest(history, at)
  local offset, order = struct.unpack('>I8I4', at)
  if order == 0 or offset < struct.unpack('>I8', at, 31) then return true end
  local newest = redis.call('XREVRANGE', history, '+', '-', 'COUNT', 1)[1]
  return newest and newest[1] == string.format('%.0f-%.0f', offset, order)
end
