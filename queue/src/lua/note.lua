#!lua flags=allow-oom
-- Notes up to which number a log was fed, whatever was known of it.
-- KEYS  1 spill   ARGV  1 log id  2 number
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 0
