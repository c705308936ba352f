-- What the scripts that write to a partition begin with. KEYS: position, rows, order, tombstones, history, repairs,
-- index_keys, index_entries, indexes.
-- ARGV[1]: the gateway; ARGV[2]: the first bytes of the position that it knows to be stored, none for nothing known;
-- ARGV[3]: longest history.

local position, rows, order, tombstones, history, repairs, index_keys, index_entries, indexes = unpack(KEYS)
local gateway, known, history_max = ARGV[1], ARGV[2], tonumber(ARGV[3])

local function number(text, at) return (struct.unpack('>I8', text, at)) end
local function is_row(value) return value and string.byte(value, 21) == $IS_ROW end
local function time_of(value) return (struct.unpack('>i8', value, 22)) end
local function row_of(value) return string.sub(value, 30) end

local phase, stored = unpack(redis.call('HMGET', position, gateway, 'at'))

-- Return whether what this writer wrote is lost, so that what it brings would leave a gap, or be of another copy. Its
-- phase is `new_phase` where it said so already, and the answer was lost.
local function went_back(new_phase)
  if known == '' then return false end
  if not phase or not stored then return true end
  if string.sub(stored, 47, 54) ~= string.sub(known, 48, 55) then return true end
  if is_before(stored, known) then return true end
  local is_restoring, was_restoring = string.byte(phase) == $RESTORING, string.byte(known) == $RESTORING
  return is_restoring ~= was_restoring and phase ~= new_phase
end

local last_offset, last_order = 0, 0
if stored then last_offset, last_order = struct.unpack('>I8I4', stored) end

local function remember(offset, order_in_offset, value, time_ms, is_delete, before)
  local entry = {'key', value[1], 'version', string.sub(value[2], 9, 20), 'time_ms', string.format('%.0f', time_ms)}
  if not is_delete then entry[#entry + 1] = 'row'; entry[#entry + 1] = row_of(value[2]) end
  if is_row(before) then entry[#entry + 1] = 'before'; entry[#entry + 1] = row_of(before) end
  redis.call('XADD', history, string.format('%.0f-%.0f', offset, order_in_offset), unpack(entry))
  last_offset, last_order = offset, order_in_offset
end

local function bound(history_start)
  if redis.call('XLEN', history) <= history_max then return history_start end
  redis.call('XTRIM', history, 'MAXLEN', history_max + 1)
  local newest_gone = redis.call('XRANGE', history, '-', '+', 'COUNT', 1)[1][1]
  redis.call('XTRIM', history, 'MAXLEN', history_max)
  return tonumber(string.match(newest_gone, '^%d+')) + 1
end

local function save(before_start, history_start, incarnation_and_sources)
  local last = struct.pack('>I8I4', last_offset, last_order)
  local value = last .. before_start .. struct.pack('>I8I8', history_start, 0) .. incarnation_and_sources
  redis.call('HSET', position, 'at', value)
  return value
end
