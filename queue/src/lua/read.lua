#!lua flags=no-writes
-- Returns entries of a stream after an id, until they add up to a budget. Reading ahead is bounded
-- in bytes even if single packs are large. Returns at least one entry if there is one.
-- KEYS[1] stream  ARGV after, bytes, entries
local after, left, entries = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
while entries > 0 and left > 0 do
  local next = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 1)[1]
  if not next then break end
  found[#found + 1] = next
  after = next[1]
  entries = entries - 1
  for _, part in ipairs(next[2]) do left = left - #part end
end
return found
