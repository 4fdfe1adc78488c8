#!lua flags=allow-oom
-- Removes a consumer with its cursor, replays, lanes and dead letters. Frees the entries that only
-- it held back.
-- KEYS  1 stream  2 counts  3 consumers  4 shares  5 rebuild  6... the consumer's own keys
-- ARGV  1 consumer
-- The plan of a restoration has the consumer, which would come back at its end.
if redis.call('EXISTS', KEYS[5]) == 1 then
  return redis.error_reply('RESTORING the queue is being restored from an archive')
end
local gone = redis.pcall('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
for _, count in ipairs({'through:', 'open:', 'lanes:', 'oldest:'}) do
  redis.call('HDEL', KEYS[2], count .. ARGV[1])
end
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
-- Not DEL: dead letters may be a gigabyte, and Redis serves no client while DEL frees them.
redis.call('UNLINK', unpack(KEYS, 6))
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local lowest, through
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then groups = {} end
for _, reply in ipairs(groups) do
  local group = {}
  for i = 1, #reply, 2 do group[reply[i]] = reply[i + 1] end
  local ms, seq = parts(group['last-delivered-id'])
  local low_ms, low_seq = parts(lowest or '0-0')
  if not lowest or ms < low_ms or (ms == low_ms and seq < low_seq) then
    lowest = group['last-delivered-id']
    through = redis.call('HGET', KEYS[2], 'through:' .. group.name) or 0
  end
end
if lowest then
  local ms, seq = parts(lowest)
  redis.call('HSET', KEYS[2], 'trimmed', through)
  redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-%.0f', ms, seq + 1))
end
return type(gone) == 'number' and gone or 0
