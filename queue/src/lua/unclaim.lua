#!lua flags=allow-oom
-- Removes the claim to spill if it still has the value that was seen.
-- KEYS  1 claim   ARGV  1 value that was seen
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
