#!lua flags=allow-oom
-- Leader election of a consumer. It needs no clock of Redis: the leader increments a counter. A
-- standby that has seen it stand still for long enough, by the standby's own clock, may take over.
-- KEYS  1 leader  2 consumers  3 dead bytes  4 controls  5 instance
-- ARGV  1 check | bump | take | release  2 token  3 consumer  4 value that was seen ('' = none)
--       5 host  6 process id  7 state, for an operator
--       8 kind of the consumer ('' = not published)  9 its filter as JSON, with take
local current = redis.call('GET', KEYS[1]) or ''
-- A consumer of another kind is not taken, and nobody waits to take it.
local function wrong_kind()
  local kind = redis.call('HGET', KEYS[5], 'kind')
  if ARGV[8] == '' or not kind or kind == ARGV[8] then return nil end
  return redis.error_reply('WRONGKIND the consumer ' .. ARGV[3] .. ' is one of the kind ' .. kind
    .. '; give this process another CONSUMER')
end
local token, counter = string.match(current, '^([^:]*):(%d+)$')
local function mine(count)
  redis.call('SET', KEYS[1], ARGV[2] .. ':' .. string.format('%.0f', count))
  redis.call('HSET', KEYS[5], 'token', ARGV[2], 'host', ARGV[5], 'pid', ARGV[6], 'state', ARGV[7])
  local now = redis.call('TIME')
  local ms = now[1] .. string.sub(string.format('%06d', now[2]), 1, 3)
  redis.call('HSET', KEYS[2], ARGV[3], ms)
  local memory = redis.call('INFO', 'memory')
  local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
  local limit = tonumber(string.match(memory, '\nmaxmemory:(%d+)'))
  local full = limit > 0 and used >= limit
  local controls = redis.call('HGET', KEYS[4], 'version') or '0'
  return {1, redis.call('GET', KEYS[3]) or '0', full and '1' or '0', controls, ms}
end
if ARGV[1] == 'check' then return wrong_kind() or {1, '0', '0', '0', '0'} end
if ARGV[1] == 'take' then
  if current ~= ARGV[4] then return {0, '0', '0', '0', '0'} end
  local refusal = wrong_kind()
  if refusal then return refusal end
  if ARGV[8] ~= '' then redis.call('HSET', KEYS[5], 'kind', ARGV[8], 'filter', ARGV[9]) end
  return mine(1)
end
if token ~= ARGV[2] then return {0, '0', '0', '0', '0'} end
if ARGV[1] == 'release' then
  redis.call('DEL', KEYS[1])
  -- Kind and filter stay: while the consumer is stopped, they say what waits for it.
  redis.call('HDEL', KEYS[5], 'token', 'host', 'pid', 'state')
  return {1, '0', '0', '0', '0'}
end
return mine(tonumber(counter) + 1)
