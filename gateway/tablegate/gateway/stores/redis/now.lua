-- The time.

local function now_ms()  -- by the one clock that all gateways share
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
