#!lua flags=allow-oom
-- Lease of the one purge that may work on a cell, and how far that purge has come.
-- KEYS  1 purge  2 progress of the purge
-- ARGV  1 take | renew | keep | release  2 token  3 seconds after which the lease, or the progress, ends by itself
--       4 progress, with keep
local holder = redis.call('GET', KEYS[1])
if ARGV[1] == 'take' then
  if holder then return 0 end
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
  return 1
end
if holder ~= ARGV[2] then return 0 end
if ARGV[1] == 'renew' then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
elseif ARGV[1] == 'keep' then
  redis.call('SET', KEYS[2], ARGV[4], 'EX', ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return 1
