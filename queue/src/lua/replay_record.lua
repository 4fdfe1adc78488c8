#!lua flags=allow-oom
-- Begins, takes over or ends the record of a replay. Returns its state before, or nothing if there is none.
-- KEYS  1 record  2 shops that are left  3 records of the consumer
-- ARGV  1 start | take | done | cancel  2 id of the replay  3 token of the process  4 now, in ms
--       with start: 5 description as JSON  6 position after which to feed  7 most records  8 prefix of records
--       with done and cancel: 5 seconds for which the record is kept
local state = redis.call('HGET', KEYS[1], 'state')
if ARGV[1] == 'start' then
  if state then return {state} end
  local records = 0
  for _, id in ipairs(redis.call('HKEYS', KEYS[3])) do
    if redis.call('EXISTS', ARGV[8] .. id) == 1 then
      records = records + 1
    else
      redis.call('HDEL', KEYS[3], id)
    end
  end
  if records >= tonumber(ARGV[7]) then return {'many'} end
  redis.call('HSET', KEYS[1], 'spec', ARGV[5], 'owner', ARGV[3], 'state', 'running', 'step', '0',
    'after', ARGV[6], 'last', '', 'fed', '0', 'skipped', '0', 'started', ARGV[4], 'changed', ARGV[4])
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
  return {'new'}
end
if not state then return {} end
if ARGV[1] == 'take' then
  if state == 'running' then redis.call('HSET', KEYS[1], 'owner', ARGV[3]) end
  return {state}
end
if state ~= 'running' then return {state} end
if ARGV[1] == 'done' and redis.call('HGET', KEYS[1], 'owner') ~= ARGV[3] then return {'taken'} end
local ended = ARGV[1] == 'done' and 'done' or 'cancelled'
redis.call('HSET', KEYS[1], 'state', ended, 'changed', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return {state}
