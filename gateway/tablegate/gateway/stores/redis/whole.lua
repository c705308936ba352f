-- What is not there may be lost: a Redis that evicts removes keys one by one. Each row is in one of two sorted sets, so
-- that a partition of which some of the three are gone is told. What is gone is no row that nobody wrote.

local function is_whole(rows, order, tombstones)
  return redis.call('HLEN', rows) == redis.call('ZCARD', order) + redis.call('ZCARD', tombstones)
end

local function damaged() return redis.error_reply('DAMAGED keys of the partition are gone') end

local function are_all_there(values)
  for _, value in ipairs(values) do
    if not value then return false end
  end
  return true
end
