#!lua flags=no-writes
-- Ids of the entries behind an id, without what they hold. Redis copies that all the same, so a call
-- ends after a budget of bytes.
-- KEYS[1] stream  ARGV after, up to, bytes
local found, after, left = {}, ARGV[1], tonumber(ARGV[3])
while left > 0 do
  local entries = redis.call('XRANGE', KEYS[1], '(' .. after, ARGV[2], 'COUNT', 16)
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    found[#found + 1] = entry[1]
    for _, part in ipairs(entry[2]) do left = left - #part end
  end
  after = found[#found]
end
return found
