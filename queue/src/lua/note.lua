#!lua flags=allow-oom
-- Records the number up to which a log is restored, in place of the one that its holder was told.
-- KEYS  1 claim  2 spill   ARGV  1 log id  2 token  3 number that was told  4 number
local id, token = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+):(%x+):')
if id ~= ARGV[1] or token ~= ARGV[2] then
  return redis.error_reply('FENCED another receiver spills for this cell')
end
-- A call that comes late finds what was restored since, and changes nothing.
if (redis.call('HGET', KEYS[2], ARGV[1]) or '0') ~= ARGV[3] then
  return redis.error_reply('OUTOFSTEP another number is held')
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return 0
