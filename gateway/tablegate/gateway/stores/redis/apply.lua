-- Applies a batch to a partition: rows, order, tombstones, history and position, in one step. What another gateway has
-- applied already is passed over; what is older than the row that is stored is stale.
-- ARGV[4]: the next offset of what this gateway brought before; ARGV[5]: the position; ARGV[6]: how many indexes this
-- gateway keeps; their ids; then key and value of each change; then, where it keeps indexes, the packed index keys of
-- each. Returns the position that is stored, and how many changes were applied (-1: none, as the store is further),
-- then the numbers of the stale ones, from 0, and of each its kind; nothing: went back.
local brought, new = tonumber(ARGV[4]), ARGV[5]
local new_next, stored_next = number(new, 1), stored and number(stored, 13) or 0
local new_phase = string.sub(new, 17, 17)
if went_back(new_phase) then return {} end
if new_next < stored_next then
  if string.byte(new_phase) ~= $RESTORING and string.byte(stored, 29) == $RESTORING then
    -- Others still restore what is whole for this gateway: from here on the history has what they bring.
    stored = string.sub(stored, 1, 28) .. new_phase .. string.sub(stored, 30)
  end
  redis.call('HSET', position, gateway, new_phase, 'at', stored)
  return {new_phase .. stored, -1}
end
-- What was whole once stays whole, whichever gateway goes on with it: its history is not given up.
local is_shared = redis.call('HLEN', position) > (phase and 2 or 1)
local was_whole = is_shared and string.byte(stored, 29) ~= $RESTORING
local restoring = string.byte(new_phase) == $RESTORING and not was_whole

local function compared(value, than)  -- versions: above 0, 0 or below 0
  local a, b, c = struct.unpack('>I4I4I4', value, 9)
  local d, e, f = struct.unpack('>I4I4I4', than, 9)
  if a ~= d then return a - d end
  if b ~= e then return b - e end
  return c - f
end

local function kind_of(value, stored_value)  -- of a stale change
  if compared(value, stored_value) < 0 then return $OLDER end
  if is_row(value) ~= is_row(stored_value) or row_of(value) ~= row_of(stored_value) then return $CONFLICT end
  return $REPEAT
end

local index_count = tonumber(ARGV[6])
local first = 7 + index_count  -- of the changes
local change_count = (#ARGV - first + 1) / (index_count > 0 and 3 or 2)
local packed, reindexed = {}, {}  -- of the keys whose rows change
local keys = {}
for i = first, first + 2 * change_count - 1, 2 do keys[#keys + 1] = ARGV[i] end
local found = values_of(rows, keys)
local was, newest, touched, changes, result = {}, {}, {}, {}, {'', 0}
local pending = {}  -- by key: what is to be repaired; false: nothing any more
local previous = -1
for i, key in ipairs(keys) do
  local value = ARGV[first + 2 * i - 1]
  local offset = number(value, 1)
  if offset <= previous or offset >= new_next then
    return redis.error_reply('ERR changes are not in order, or beyond their position')
  end
  previous = offset
  if was[key] == nil then was[key] = found[i]; newest[key] = found[i] end
  local before = newest[key]
  local is_stale = before and compared(value, before) <= 0
  if offset < brought or (offset >= stored_next and is_stale) then
    local kind = is_stale and kind_of(value, before) or $REPEAT
    result[#result + 1] = i - 1
    result[#result + 1] = kind
    -- What lies before the stored record is no danger to it.
    if is_stale and offset >= stored_next and offset > number(before, 1) then
      if kind == $REPEAT then  -- it is the newest record from here on, and no change
        if before == was[key] then touched[#touched + 1] = key end
        newest[key], pending[key] = value, false
      else
        pending[key] = string.sub(before, 1, 20)
      end
    end
  elseif offset >= stored_next then  -- what is below, another gateway has applied
    if before == was[key] then touched[#touched + 1] = key end
    newest[key], pending[key] = value, false
    reindexed[key] = true
    packed[key] = is_row(value) and ARGV[first + 2 * change_count + i - 1] or nil
    changes[#changes + 1] = {key, value, before}
  end
end
result[2] = #changes

local put, live, gone, buried, raised = {}, {}, {}, {}, {}
for _, key in ipairs(touched) do
  local value, old = newest[key], was[key]
  put[#put + 1] = key; put[#put + 1] = value
  if is_row(value) then
    if not is_row(old) then live[#live + 1] = 0; live[#live + 1] = key end
    if old and not is_row(old) then raised[#raised + 1] = key end
  else
    if is_row(old) then gone[#gone + 1] = key end
    buried[#buried + 1] = string.format('%.0f', number(value, 1)); buried[#buried + 1] = key
  end
end
local mended, unmended = {}, {}
for key, value in pairs(pending) do
  if value then unmended[#unmended + 1] = key; unmended[#unmended + 1] = value else mended[#mended + 1] = key end
end
if not stored then  -- what a removal has left
  redis.call('UNLINK', rows, order, tombstones, history, repairs, index_keys, index_entries, indexes)
end
call_many('HSET', rows, put)
call_many('HSET', repairs, unmended)
call_many('ZADD', order, live)
if index_count > 0 or redis.call('EXISTS', indexes) == 1 then
  local is_kept, anew = {}, '$INDEX_ANEW' .. string.format('%.0f', new_next)
  for i = 7, first - 1 do
    is_kept[ARGV[i]] = true
    redis.call('HSETNX', indexes, ARGV[i], stored and anew or '$INDEX_WHOLE')
  end
  if #changes > 0 then
    -- Of what this gateway does not keep, its rows lack entries from now on.
    for _, id in ipairs(redis.call('HKEYS', indexes)) do
      if not is_kept[id] then redis.call('HSET', indexes, id, anew) end
    end
    local changed = {}
    for _, key in ipairs(touched) do
      if reindexed[key] then changed[#changed + 1] = key end
    end
    put_entries(index_keys, index_entries, changed, packed)
  end
end
call_many('HDEL', repairs, mended)  -- not before what a full Redis refuses: it would refuse nothing any more
call_many('ZREM', order, gone)
call_many('ZREM', tombstones, raised)
call_many('ZADD', tombstones, buried)

local history_start = stored and number(stored, 31) or number(new, 19)
if stored and not has_newest(history, stored) then history_start = stored_next end  -- what it had is lost
if restoring then
  redis.call('UNLINK', history)
  last_offset, last_order, history_start = 0, 0, math.max(new_next, number(new, 19))
else
  if number(new, 19) > history_start then
    -- Another gateway may have brought later changes already: they stay.
    history_start = number(new, 19)
    redis.call('XTRIM', history, 'MINID', string.format('%.0f', history_start))
  end
  for _, change in ipairs(changes) do
    local value = change[2]
    if number(value, 1) >= history_start then
      remember(number(value, 1), $RECORD_ORDER, change, time_of(value), not is_row(value), change[3])
    end
  end
  history_start = bound(history_start)
end
local as_of, common_phase = string.sub(new, 9, 16), new_phase
if is_shared and number(stored, 21) > number(new, 9) then as_of = string.sub(stored, 21, 28) end
if was_whole and string.byte(new_phase) == $RESTORING then common_phase = string.sub(stored, 29, 29) end
local head = string.sub(new, 1, 8) .. as_of .. common_phase .. string.sub(new, 18, 18)
local incarnation = stored and string.sub(stored, 47, 54) or string.sub(new, 35, 42)
result[1] = new_phase .. save(head, history_start, incarnation .. string.sub(new, 43))
redis.call('HSET', position, gateway, new_phase)
return result
