#!lua flags=no-writes
-- Status for operators: one row for the queue, one for each consumer. Returns ids only, never a
-- pack.
-- KEYS  1 stream  2 counts  3 consumers  4 shares  5 times of redactions  ARGV  1 prefix
local function info(reply)
  local about = {}
  for i = 1, #reply, 2 do about[reply[i]] = reply[i + 1] end
  return about
end
local memory = redis.call('INFO', 'memory')
local now = redis.call('TIME')
local rows = {{
  redis.call('XLEN', KEYS[1]),
  redis.call('HGET', KEYS[2], 'appended') or '0',
  redis.call('HGET', KEYS[2], 'trimmed') or '0',
  string.match(memory, 'used_memory:(%d+)'),
  string.match(memory, '\nmaxmemory:(%d+)'),
  now[1] .. string.sub(string.format('%06d', now[2]), 1, 3),
  redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2] or '0',
}}
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then groups = {} end
for _, reply in ipairs(groups) do
  local group = info(reply)
  local own = ARGV[1] .. group.name
  local oldest = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+', 'COUNT', 1)[1]
  local replay = redis.call('XRANGE', own .. ':replays', '-', '+', 'COUNT', 1)[1]
  local aside = redis.call('HGET', KEYS[2], 'oldest:' .. group.name) or '0'
  if replay then
    for i = 1, #replay[2], 2 do
      local ms = replay[2][i] == 'id' and string.match(replay[2][i + 1], '^%x+%-(%d+)%-')
      if ms and (tonumber(aside) == 0 or tonumber(ms) < tonumber(aside)) then aside = ms end
    end
  end
  rows[#rows + 1] = {
    group.name,
    group['last-delivered-id'],
    oldest and oldest[1] or '',
    redis.call('HGET', KEYS[2], 'through:' .. group.name) or '0',
    redis.call('HGET', KEYS[2], 'open:' .. group.name) or '0',
    redis.call('GET', own .. ':leader') or '',
    redis.call('HGET', KEYS[3], group.name) or '0',
    redis.call('XLEN', own .. ':replays')
      + tonumber(redis.call('HGET', KEYS[2], 'lanes:' .. group.name) or 0),
    aside,
    redis.call('XLEN', own .. ':dead'),
    redis.call('GET', own .. ':dead:bytes') or '0',
    {
      redis.call('HGETALL', own .. ':controls'),
      redis.call('HGET', KEYS[4], group.name) or '',
      redis.call('HMGET', own .. ':instance', 'token', 'host', 'pid', 'state', 'kind', 'filter'),
    },
  }
end
return rows
