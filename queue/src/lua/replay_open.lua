#!lua flags=no-writes
-- Finds replays that are not settled. No pack leaves Redis.
-- KEYS  1 replays
-- ARGV  1 known | fed
--       with known: 2... ids; returns those that are there
--       with fed: 2 id of the replay  3 entry after which to look  4 entries to look at; returns the last entry looked
--       at ('' = no more), then id and shop of each entry of the replay
local found = {}
if ARGV[1] == 'known' then
  for i = 2, #ARGV do
    if #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i], 'COUNT', 1) > 0 then
      found[#found + 1] = ARGV[i]
    end
  end
  return found
end
found[1] = ''
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[3], '+', 'COUNT', ARGV[4])) do
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  found[1] = entry[1]
  if fields.replay == ARGV[2] then
    found[#found + 1] = entry[1]
    found[#found + 1] = fields.shop or ''
  end
end
return found
