"""What Redis runs for the store, each in one atomic step: scripts in Lua.

A script that ends with an error keeps what it wrote before, so each looks at everything first and then writes. All keys
of one are in one slot. Lua compares strings by the server's locale, and so versions are compared as numbers.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.lmdb.layout import IS_ROW, RECORD_ORDER


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name by which a server that has it runs it."""

    text: str
    sha: str
    command: str

    @classmethod
    def of(cls, text: str, *, writes: bool) -> "Script":
        """Return the script of a text, which may name constants of the layout."""
        constants = {
            "RESTORING": Phase.RESTORING,
            "CATCHING_UP": Phase.CATCHING_UP,
            "IS_ROW": IS_ROW,
            "RECORD_ORDER": RECORD_ORDER,
        }
        for name, value in constants.items():
            text = text.replace(f"${name}", str(int(value)))
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return cls(text, sha, "EVALSHA" if writes else "EVALSHA_RO")

    def on(self, keys: Sequence[str], arguments: Iterable[Any]) -> tuple[Any, ...]:
        """Return the command that runs it."""
        return self.command, self.sha, len(keys), *keys, *arguments


_MANY = """
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
"""

# ARGV[1]: the gateway; ARGV[2]: the first bytes of the position that it knows to be stored, none for nothing known;
# ARGV[3]: longest history.
_WRITE = (
    _MANY
    + """
local position, rows, order, tombstones, history = unpack(KEYS)
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
  if not phase or not stored or number(stored, 13) < number(known, 14) then return true end
  if string.sub(stored, 47, 54) ~= string.sub(known, 48, 55) then return true end
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

local function save(before_start, history_start, life_and_sources)
  local last = struct.pack('>I8I4', last_offset, last_order)
  local value = last .. before_start .. struct.pack('>I8I8', history_start, 0) .. life_and_sources
  redis.call('HSET', position, 'at', value)
  return value
end
"""
)

APPLY = Script.of(
    _WRITE
    + """
-- ARGV[4]: the next offset of what this gateway brought before; ARGV[5]: the position; then key and value of each
-- change. Returns the position that is stored, and how many changes were applied (-1: none, as the store is further),
-- then the numbers of the stale ones, from 0; nothing: went back.
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

local function is_newer(value, than)
  local a, b, c = struct.unpack('>I4I4I4', value, 9)
  local d, e, f = struct.unpack('>I4I4I4', than, 9)
  if a ~= d then return a > d end
  if b ~= e then return b > e end
  return c > f
end

local keys = {}
for i = 6, #ARGV, 2 do keys[#keys + 1] = ARGV[i] end
local found = values_of(rows, keys)
local was, newest, touched, changes, result = {}, {}, {}, {}, {'', 0}
local previous = -1
for i, key in ipairs(keys) do
  local value = ARGV[2 * i + 5]
  local offset = number(value, 1)
  if offset <= previous or offset >= new_next then
    return redis.error_reply('ERR changes are not in order, or beyond their position')
  end
  previous = offset
  if was[key] == nil then was[key] = found[i]; newest[key] = found[i] end
  local before = newest[key]
  if offset < brought or (offset >= stored_next and before and not is_newer(value, before)) then
    result[#result + 1] = i - 1
  elseif offset >= stored_next then  -- what is below, another gateway has applied
    if before == was[key] then touched[#touched + 1] = key end
    newest[key] = value
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
if not stored then redis.call('UNLINK', rows, order, tombstones, history) end  -- what a removal has left
call_many('HSET', rows, put)
call_many('ZADD', order, live)
call_many('ZREM', order, gone)
call_many('ZREM', tombstones, raised)
call_many('ZADD', tombstones, buried)

local history_start = stored and number(stored, 31) or number(new, 19)
if restoring then
  redis.call('UNLINK', history)
  last_offset, last_order, history_start = 0, 0, new_next
else
  for _, change in ipairs(changes) do
    local value = change[2]
    remember(number(value, 1), $RECORD_ORDER, change, time_of(value), not is_row(value), change[3])
  end
  history_start = bound(history_start)
end
local as_of, common_phase = string.sub(new, 9, 16), new_phase
if is_shared and number(stored, 21) > number(new, 9) then as_of = string.sub(stored, 21, 28) end
if was_whole and string.byte(new_phase) == $RESTORING then common_phase = string.sub(stored, 29, 29) end
local head = string.sub(new, 1, 8) .. as_of .. common_phase .. string.sub(new, 18, 18)
local life = stored and string.sub(stored, 47, 54) or string.sub(new, 35, 42)
result[1] = new_phase .. save(head, history_start, life .. string.sub(new, 43))
redis.call('HSET', position, gateway, new_phase)
return result
""",
    writes=True,
)

EXPIRE = Script.of(
    _WRITE
    + """
-- ARGV[4]: the time; then keys. Returns the position that is stored, and how many rows there were; nothing: went back.
if went_back(nil) then return {} end
local keys, seen = {}, {}
for i = 5, #ARGV do
  if not seen[ARGV[i]] then seen[ARGV[i]] = true; keys[#keys + 1] = ARGV[i] end
end
local found = values_of(rows, keys)
local gone, values = {}, {}
for i, key in ipairs(keys) do
  if is_row(found[i]) then gone[#gone + 1] = key; values[#gone] = found[i] end
end
call_many('HDEL', rows, gone)
call_many('ZREM', order, gone)
if stored and string.byte(stored, 29) ~= $RESTORING and #gone > 0 then
  local next_offset = number(stored, 13)
  local order_before = last_offset == next_offset and last_order or 0
  for i, key in ipairs(gone) do
    remember(next_offset, order_before + i, {key, values[i]}, tonumber(ARGV[4]), true, values[i])
  end
  stored = save(string.sub(stored, 13, 30), bound(number(stored, 31)), string.sub(stored, 47))
end
return {phase and stored and phase .. stored, #gone}
""",
    writes=True,
)

DROP_TOMBSTONES = Script.of(
    _MANY
    + """
-- KEYS: rows, tombstones. ARGV: time before which they go, how many at most. Returns how many went.
local keys = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)
local gone = {}
for i, value in ipairs(values_of(KEYS[1], keys)) do
  if not value or struct.unpack('>i8', value, 22) >= tonumber(ARGV[1]) then break end
  gone[i] = keys[i]
end
call_many('HDEL', KEYS[1], gone)
call_many('ZREM', KEYS[2], gone)
return #gone
""",
    writes=True,
)

JOIN = Script.of(
    """
-- KEYS: position. ARGV: the gateway. Returns the position, as this gateway has it from now on, and who had it before;
-- nothing: there is none.
local stored, had = redis.call('HGET', KEYS[1], 'at'), redis.call('HKEYS', KEYS[1])
if not stored then return {} end
local phase = string.char(string.byte(stored, 29) == $RESTORING and $RESTORING or $CATCHING_UP)
redis.call('HSET', KEYS[1], ARGV[1], phase)
return {phase .. stored, had}
""",
    writes=True,
)

DROP = Script.of(
    _MANY
    + """
-- ARGV[1]: how many rows and changes at most; then the gateways that keep it no more. Returns how many rows and changes
-- went, and how many are left; where another gateway keeps them, none are.
local position, rows, order, tombstones, history = unpack(KEYS)
local left = tonumber(ARGV[1])
call_many('HDEL', position, {unpack(ARGV, 2)})
if redis.call('HLEN', position) > redis.call('HEXISTS', position, 'at') then return {0, 0} end
redis.call('DEL', position)
for _, key in ipairs({order, tombstones}) do
  local keys = {}
  for i, text in ipairs(left > 0 and redis.call('ZPOPMIN', key, left) or {}) do
    if i % 2 == 1 then keys[#keys + 1] = text end
  end
  call_many('HDEL', rows, keys)
  left = left - #keys
end
local changes = redis.call('XLEN', history)
local cut = math.min(left, changes)
if cut > 0 then redis.call('XTRIM', history, 'MAXLEN', changes - cut) end
local rest = redis.call('ZCARD', order) + redis.call('ZCARD', tombstones) + changes - cut
if rest == 0 then redis.call('UNLINK', rows, history) end
return {tonumber(ARGV[1]) - left + cut, rest}
""",
    writes=True,
)

COPY = Script.of(
    """
-- KEYS: copies. ARGV: name, store id and life of a new one; then the store ids that are not wanted. Returns store id
-- and life.
local found = redis.call('HGET', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  if found and string.match(found, '^%d+') == ARGV[i] then found = false end
end
if not found then
  found = ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], found)
end
return found
""",
    writes=True,
)

_NOW = """
local function now_ms()  -- by the one clock that all gateways share
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""

HERE = Script.of(
    _NOW
    + """
-- KEYS: gateways. ARGV: the gateway that is here.
return redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now_ms()))
""",
    writes=True,
)

THERE = Script.of(
    _NOW
    + """
-- KEYS: gateways. ARGV: for how long, in ms. Returns those that were here within that time.
local names, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now_ms() - all[i + 1] < tonumber(ARGV[1]) then names[#names + 1] = all[i] end
end
return names
""",
    writes=False,
)

BURY = Script.of(
    _MANY
    + _NOW
    + """
-- KEYS: gateways; states, status and places of one that is gone. ARGV: the gateway, how long it must have been away, in
-- ms; then places of which it has nothing any more. Where those were all, nothing is left of it; returns whether.
local seen = redis.call('HGET', KEYS[1], ARGV[1])
if not seen or now_ms() - seen < tonumber(ARGV[2]) then return 0 end
call_many('SREM', KEYS[4], {unpack(ARGV, 3)})
if redis.call('SCARD', KEYS[4]) > 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return redis.call('HDEL', KEYS[1], ARGV[1])
""",
    writes=True,
)

_HELD = """
local function held()  -- the position, as this gateway has it
  local phase, at = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'at'))
  return phase and at and phase .. at
end
"""

READ_VALUES = Script.of(
    _MANY
    + _HELD
    + """
-- KEYS: position, rows. ARGV: the gateway; then keys. Returns position and values.
return {held(), values_of(KEYS[2], {unpack(ARGV, 2)})}
""",
    writes=False,
)

READ_RANGE = Script.of(
    _MANY
    + _HELD
    + """
-- KEYS: position, rows, order. ARGV: the gateway, first, last, limit, and REV for descending. Returns position, keys
-- and values.
local keys
if ARGV[5] == 'REV' then
  keys = redis.call('ZRANGE', KEYS[3], ARGV[3], ARGV[2], 'BYLEX', 'REV', 'LIMIT', 0, ARGV[4])
else
  keys = redis.call('ZRANGE', KEYS[3], ARGV[2], ARGV[3], 'BYLEX', 'LIMIT', 0, ARGV[4])
end
return {held(), keys, values_of(KEYS[2], keys)}
""",
    writes=False,
)

READ_HISTORY = Script.of(
    _HELD
    + """
-- KEYS: position, history. ARGV: the gateway, first id, last id, limit. Returns position and entries.
return {held(), redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[3], 'COUNT', ARGV[4])}
""",
    writes=False,
)

SCRIPTS = (
    APPLY,
    EXPIRE,
    DROP_TOMBSTONES,
    JOIN,
    DROP,
    COPY,
    HERE,
    THERE,
    BURY,
    READ_VALUES,
    READ_RANGE,
    READ_HISTORY,
)
