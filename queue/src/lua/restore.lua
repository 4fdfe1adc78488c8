#!lua
-- Appends packs that were spilled, after the last one that was restored: each once, in order.
-- Refused on a full Redis, like every append. Returns the id of the last entry.
-- KEYS  1 stream  2 counts  3 claim  4 spill
-- ARGV  1 log id  2 token  3 number of the pack before the first  then (number, webhooks, pack)*
local id, token = string.match(redis.call('GET', KEYS[3]) or '', '^(%x+):(%x+):')
if id ~= ARGV[1] or token ~= ARGV[2] then
  return redis.error_reply('FENCED another receiver spills for this cell')
end
if (redis.call('HGET', KEYS[4], ARGV[1]) or '0') ~= ARGV[3] then
  return redis.error_reply('OUTOFSTEP these packs do not follow the last one')
end
local entry = '0-0'
for at = 4, #ARGV, 3 do
  entry = redis.call('XADD', KEYS[1], '*', 'p', ARGV[at + 2])
  redis.call('HINCRBY', KEYS[2], 'appended', ARGV[at + 1])
  redis.call('HSET', KEYS[4], ARGV[1], ARGV[at])
end
return entry
