#!lua flags=allow-oom
-- Writes an operator's order for a consumer. The consumer's leader looks for a new version each
-- second.
-- KEYS  1 stream  2 controls  3 dropping  4 history
-- ARGV  1 pause | resume | drop  2 consumer  3 records for the history ('' = none)
--       then  pause: field, since  resume: fields  drop: pairs of a name and its bits
local known = false
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then groups = {} end
for _, group in ipairs(groups) do known = known or group[2] == ARGV[2] end
if not known then return redis.error_reply('NOGROUP the consumer is not registered') end
local changed = 0
if ARGV[1] == 'pause' then
  changed = redis.call('HSETNX', KEYS[2], ARGV[4], ARGV[5])
elseif ARGV[1] == 'resume' then
  for i = 4, #ARGV do changed = changed + redis.call('HDEL', KEYS[2], ARGV[i]) end
else
  for i = 4, #ARGV, 2 do
    local before, bits = redis.call('HGET', KEYS[3], ARGV[i]) or '', {}
    for at = 1, math.max(#before, #ARGV[i + 1]) do
      bits[at] = string.char(bit.bor(before:byte(at) or 0, ARGV[i + 1]:byte(at) or 0))
    end
    redis.call('HSET', KEYS[3], ARGV[i], table.concat(bits))
    changed = changed + 1
  end
  if ARGV[3] ~= '' then
    -- If duplicates are dropped, the consumer deletes older records sooner.
    local month_ago = string.format('%.0f', (redis.call('TIME')[1] - 30 * 86400) * 1000)
    redis.call('XADD', KEYS[4], 'MINID', '~', month_ago, '*', 'h', ARGV[3])
  end
end
return {changed, redis.call('HINCRBY', KEYS[2], 'version', 1)}
