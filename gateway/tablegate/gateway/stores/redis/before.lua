-- Returns whether a stored position was before the one that a writer knows, which begins with its phase: of one offset
-- the newest change counts, as rows that expire move nothing else.
local function is_before(stored, known)
  local next_offset, known_next = struct.unpack('>I8', stored, 13), struct.unpack('>I8', known, 14)
  if next_offset ~= known_next then return next_offset < known_next end
  local offset, order = struct.unpack('>I8I4', stored)
  local known_offset, known_order = struct.unpack('>I8I4', known, 2)
  return offset < known_offset or (offset == known_offset and order < known_order)
end
