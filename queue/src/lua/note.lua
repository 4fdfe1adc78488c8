#!lua flags=allow-oom
-- Records the number up to which a log is restored, in place of what was stored.
-- KEYS  1 spill   ARGV  1 log id  2 number
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 0
