#!lua flags=allow-oom
-- Ends the restoration of a queue: puts it in place of the empty one, with the consumers' cursors, or removes it.
-- KEYS  1 stream  2 rebuild  3 rebuilt stream  4 cell  5 counts  6 consumers  7 redactions
--       8 times at which they were noted  9 gaps
-- ARGV  1 finish | abandon | release  2 prefix
--       release: 3 mark; removes it if the restoration has no plan yet
--       finish: 3 plan  4 entries  5 cell  6 last id  7 webhooks appended  8 webhooks trimmed
--               9 mark of settlements  10 mark of the restoration
--               11 number of redactions to note again  12 number of notes about what is lost  13 notes to keep
--               then for each redaction: Spillway-Id, value  then the notes as JSON
--               then for each consumer: name, kind ('' = not known), cursor, entries up to it, webhooks up to it,
--               webhooks settled after it
local function done(consumer) return ARGV[2] .. 'rebuild:done:' .. consumer end
if ARGV[1] == 'release' then
  if redis.call('HGET', KEYS[2], 'plan') ~= '' or redis.call('HGET', KEYS[2], 'mark') ~= ARGV[3] then
    return 0
  end
  return redis.call('DEL', KEYS[2])
end
if ARGV[1] == 'abandon' then
  for consumer in string.gmatch(redis.call('HGET', KEYS[2], 'consumers') or '', '%S+') do
    redis.call('UNLINK', done(consumer))
  end
  redis.call('UNLINK', KEYS[3])
  return redis.call('DEL', KEYS[2])
end
if redis.call('HGET', KEYS[2], 'mark') ~= ARGV[10] then
  return redis.error_reply('NOTPLANNED this restoration was abandoned, or redis lost data')
end
if redis.call('HGET', KEYS[2], 'plan') ~= ARGV[3]
  or redis.call('HGET', KEYS[2], 'entries') ~= ARGV[4] then
  return redis.error_reply('OUTOFSTEP another restoration was begun')
end
if redis.call('XLEN', KEYS[1]) > 0 then
  return redis.error_reply('NOTEMPTY the queue holds webhooks')
end
local lost = 14 + 2 * tonumber(ARGV[11])
local first = lost + tonumber(ARGV[12])
-- Counts and cursors are set for the consumers that the plan knows, and nothing may wait for them elsewhere.
local planned = {}
for at = first, #ARGV, 6 do planned[ARGV[at]] = true end
for _, name in ipairs(redis.call('HKEYS', KEYS[6])) do
  if redis.call('XLEN', ARGV[2] .. name .. ':replays') > 0
    or tonumber(redis.call('HGET', KEYS[5], 'lanes:' .. name) or 0) > 0 then
    return redis.error_reply('NOTEMPTY lanes or replays hold webhooks')
  end
  if not planned[name] then
    return redis.error_reply('NOTPLANNED the plan does not know a consumer of this redis')
  end
end
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
-- No id is given out again: neither one of the archive, nor one of the queue that was here meanwhile.
local last = ARGV[6]
local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not stream.err then
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then
      local ms, seq = parts(stream[i + 1])
      local last_ms, last_seq = parts(last)
      if ms > last_ms or (ms == last_ms and seq > last_seq) then last = stream[i + 1] end
    end
  end
end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('RENAME', KEYS[3], KEYS[1]) end
redis.call('SET', KEYS[4], ARGV[5])
redis.call('HSET', KEYS[5], 'appended', ARGV[7], 'trimmed', ARGV[8])
for at = first, #ARGV, 6 do
  local name, kind, cursor = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local own = ARGV[2] .. name
  redis.call('XGROUP', 'CREATE', KEYS[1], name, cursor, 'MKSTREAM', 'ENTRIESREAD', ARGV[at + 3])
  redis.call('HSET', KEYS[5], 'through:' .. name, ARGV[at + 4], 'open:' .. name, ARGV[at + 5],
    'lanes:' .. name, 0, 'oldest:' .. name, 0)
  redis.call('UNLINK', own .. ':done')
  if redis.call('EXISTS', done(name)) == 1 then redis.call('RENAME', done(name), own .. ':done') end
  -- A leader that read another state is refused at its next settlement, and begins again.
  redis.call('SET', own .. ':settled', ARGV[9])
  redis.call('HSETNX', KEYS[6], name, 0)
  if kind ~= '' then redis.call('HSETNX', own .. ':instance', 'kind', kind) end
end
local time = redis.call('TIME')
local now = time[1] .. string.sub(string.format('%06d', time[2]), 1, 3)
for at = 14, lost - 1, 2 do
  if redis.call('HSETNX', KEYS[7], ARGV[at], ARGV[at + 1]) == 1 then
    redis.call('ZADD', KEYS[8], now, ARGV[at])
  end
end
for at = lost, first - 1 do
  redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[13], '*', 'g', ARGV[at])
end
redis.call('XSETID', KEYS[1], last)
redis.call('DEL', KEYS[2])
return 1
