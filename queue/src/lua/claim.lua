#!lua flags=allow-oom
-- The claim to spill for this cell. It needs no clock of Redis: its holder increments a counter.
-- KEYS  1 claim  2 spill
-- ARGV  1 start | confirm | release  2 log id  3 token  4 counter
--       5 value from which it may be taken ('' = none)
local held = redis.call('GET', KEYS[1]) or ''
local id, token = string.match(held, '^(%x+):(%x+):')
local is_ours = id == ARGV[2] and token == ARGV[3]
if ARGV[1] == 'release' then
  if is_ours then redis.call('DEL', KEYS[1]) end
  return {1, held, ''}
end
-- The previous process with the same log has ended: only one process can hold its directory.
local is_next = ARGV[1] == 'start' and id == ARGV[2]
if held ~= '' and not is_ours and not is_next and held ~= ARGV[5] then return {0, held, ''} end
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[4])
return {1, held, redis.call('HGET', KEYS[2], ARGV[2]) or ''}
