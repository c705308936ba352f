-- Entries of indexes. A row has its index keys beside it, packed, so that whoever changes or removes the row finds its
-- entries, of which indexes they may be. A member of `index_entries` is an index key, the row's key, and in two bytes how long
-- the columns of the index key are.

local function members_of(key, packed)
  local members, at = {}, 1
  while packed and at <= #packed do
    local index_key
    index_key, at = struct.unpack('>I2c0', packed, at)
    members[#members + 1] = index_key .. key .. struct.pack('>I2', #index_key - $INDEX_ID_BYTES)
  end
  return members
end

-- Returns packed index keys but those of one index.
local function packed_without(packed, id)
  local kept, at = {}, 1
  while packed and at <= #packed do
    local index_key, after = struct.unpack('>I2c0', packed, at)
    if string.sub(index_key, 1, $INDEX_ID_BYTES) ~= id then kept[#kept + 1] = string.sub(packed, at, after - 1) end
    at = after
  end
  return table.concat(kept)
end

-- Puts the entries of rows in place of those that they had: `keys`, and by key the packed index keys, or none.
local function put_entries(index_keys, index_entries, keys, packed)
  local added, removed, kept, gone = {}, {}, {}, {}
  for i, old in ipairs(values_of(index_keys, keys)) do
    local key = keys[i]
    local new = packed[key]
    if new == '' then new = nil end
    if old ~= (new or false) then
      local is_new = {}
      for _, member in ipairs(members_of(key, new)) do
        is_new[member] = true
        added[#added + 1] = 0
        added[#added + 1] = member
      end
      for _, member in ipairs(members_of(key, old)) do
        if not is_new[member] then removed[#removed + 1] = member end
      end
      if new then
        kept[#kept + 1] = key
        kept[#kept + 1] = new
      else
        gone[#gone + 1] = key
      end
    end
  end
  call_many('HSET', index_keys, kept)
  call_many('ZADD', index_entries, added)
  call_many('HDEL', index_keys, gone)
  call_many('ZREM', index_entries, removed)
end
