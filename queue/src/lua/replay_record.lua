#!lua flags=allow-oom
-- Begins, takes over or ends the record of a replay. Returns its state before, or nothing if there is none.
-- KEYS  1 record  2 shops that are left  3 records of the consumer  4 stream
-- ARGV  1 start | take | again | done | cancel  2 id of the replay  3 token of the process  4 now, in ms
--       with start: 5 description as JSON  6 position after which to feed  7 most records  8 prefix of records
--                   9 prefix of shops that are left  10 consumer
--       with done and cancel: 5 seconds for which the record is kept
--       with done: 6 number of the last step
local state = redis.call('HGET', KEYS[1], 'state')
if ARGV[1] == 'start' then
  if state then return {state} end
  local is_registered = false
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[4])
  if groups.err then groups = {} end
  for _, group in ipairs(groups) do
    for i = 1, #group, 2 do
      if group[i] == 'name' and group[i + 1] == ARGV[10] then is_registered = true end
    end
  end
  if not is_registered then return {'unregistered'} end
  local running, ended = 0, {}
  local records = redis.call('HGETALL', KEYS[3])
  for i = 1, #records, 2 do
    local of = redis.call('HGET', ARGV[8] .. records[i], 'state')
    if not of then
      redis.call('HDEL', KEYS[3], records[i])
    elseif of == 'running' then
      running = running + 1
    else
      ended[#ended + 1] = {tonumber(records[i + 1]) or 0, records[i]}
    end
  end
  local most = tonumber(ARGV[7])
  if running >= most then return {'many'} end
  -- Records that ended make room, the oldest first.
  table.sort(ended, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for i = 1, running + #ended - most + 1 do
    local id = ended[i][2]
    redis.call('HDEL', KEYS[3], id)
    redis.call('DEL', ARGV[8] .. id, ARGV[9] .. id)
  end
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
if ARGV[1] == 'again' then
  return {redis.call('HGET', KEYS[1], 'owner') == ARGV[3] and state or 'taken'}
end
if ARGV[1] == 'done' and redis.call('HGET', KEYS[1], 'owner') ~= ARGV[3] then return {'taken'} end
-- Redis came back without steps that it had confirmed.
if ARGV[1] == 'done' and redis.call('HGET', KEYS[1], 'step') ~= ARGV[6] then return {'older'} end
local ended = ARGV[1] == 'done' and 'done' or 'cancelled'
redis.call('HSET', KEYS[1], 'state', ended, 'changed', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return {state}
