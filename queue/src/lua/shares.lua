#!lua flags=allow-oom
-- Publishes the shops that take much of what waits, only for the consumer's leader.
-- KEYS  1 leader  2 shares
-- ARGV  1 token  2 consumer  3 shares as JSON ('' = no shop takes much)
local leader = redis.call('GET', KEYS[1])
if not leader or string.match(leader, '^[^:]*') ~= ARGV[1] then
  return redis.error_reply('FENCED another instance is the leader')
end
if ARGV[3] == '' then return redis.call('HDEL', KEYS[2], ARGV[2]) end
local now = redis.call('TIME')
local ms = now[1] .. string.sub(string.format('%06d', now[2]), 1, 3)
return redis.call('HSET', KEYS[2], ARGV[2], ms .. ' ' .. ARGV[3])
