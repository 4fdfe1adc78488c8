#!lua flags=allow-oom
-- Notes a redaction that was delivered, or records a purge.
-- KEYS  1 redactions  2 times at which they were noted  3 forgotten
-- ARGV  1 note: Spillway-Id, value
--         order: name of an order by hand, value
--         record: record of the purge, number of records to keep, mark of the rewrite that is due, its field
--                 ('' = none), then names of notes that are carried out
--         rewritten: field of the rewrite, mark of the rewrite that is done
local function now()
  local time = redis.call('TIME')
  return time[1] .. string.sub(string.format('%06d', time[2]), 1, 3)
end
if ARGV[1] == 'note' then
  if redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3]) == 0 then return 0 end
  redis.call('ZADD', KEYS[2], now(), ARGV[2])
  return 1
end
if ARGV[1] == 'order' then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('ZADD', KEYS[2], 'NX', now(), ARGV[2])
  return 1
end
if ARGV[1] == 'rewritten' then
  -- Another purge that ended since then needs a rewrite of its own.
  if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then return 0 end
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('ZREM', KEYS[2], ARGV[2])
  return 1
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'r', ARGV[2])
if ARGV[5] == '' then return 0 end
-- The age of a redaction counts until no file of Redis holds its data.
local oldest = redis.call('ZSCORE', KEYS[2], ARGV[5]) or now()
for i = 6, #ARGV do
  local noted = redis.call('ZSCORE', KEYS[2], ARGV[i])
  if noted and tonumber(noted) < tonumber(oldest) then oldest = noted end
  redis.call('HDEL', KEYS[1], ARGV[i])
  redis.call('ZREM', KEYS[2], ARGV[i])
end
redis.call('HSET', KEYS[1], ARGV[5], ARGV[4])
redis.call('ZADD', KEYS[2], oldest, ARGV[5])
return 1
