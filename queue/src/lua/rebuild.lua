#!lua
-- Fills a queue that is restored from an archive, beside the one that is in use. Nothing reads it before it is
-- complete. Refused on a full Redis.
-- KEYS  1 stream  2 rebuild  3 rebuilt stream  4 counts  5 consumers
-- ARGV  1 hold | begin | add  2 plan  3 prefix  4 mark
--       hold: nobody registers from now on; the plan is made afterwards
--       begin: consumers
--       add:   5 entries so far  then for each entry: id, pack, count of (consumer, bits), and these
local function is_empty()
  if redis.call('XLEN', KEYS[1]) > 0 then return false end
  for _, name in ipairs(redis.call('HKEYS', KEYS[5])) do
    if redis.call('XLEN', ARGV[3] .. name .. ':replays') > 0
      or tonumber(redis.call('HGET', KEYS[4], 'lanes:' .. name) or 0) > 0 then
      return false
    end
  end
  return true
end
if not is_empty() then
  return redis.error_reply('NOTEMPTY the queue, lanes or replays hold webhooks')
end
local plan = redis.call('HGET', KEYS[2], 'plan')
local function done(consumer) return ARGV[3] .. 'rebuild:done:' .. consumer end
if ARGV[1] == 'hold' then
  if plan then
    -- The mark of an earlier version has no name.
    redis.call('HSETNX', KEYS[2], 'mark', ARGV[4])
    return {0, redis.call('HGET', KEYS[2], 'mark')}
  end
  redis.call('HSET', KEYS[2], 'plan', '', 'entries', 0, 'consumers', '', 'mark', ARGV[4])
  return {1, ARGV[4]}
end
-- Without this mark, processes may have registered, worked and ended since the plan was made.
if redis.call('HGET', KEYS[2], 'mark') ~= ARGV[4] then
  return redis.error_reply('NOTPLANNED this restoration was abandoned, or redis lost data')
end
if ARGV[1] == 'begin' then
  if plan == ARGV[2] then return tonumber(redis.call('HGET', KEYS[2], 'entries')) end
  -- Another plan was begun: the archive or its checkpoint is a newer one. What it wrote is of no use.
  for consumer in string.gmatch(redis.call('HGET', KEYS[2], 'consumers') or '', '%S+') do
    redis.call('UNLINK', done(consumer))
  end
  redis.call('UNLINK', KEYS[3])
  redis.call('HSET', KEYS[2], 'plan', ARGV[2], 'entries', 0, 'consumers', table.concat(ARGV, ' ', 5))
  return 0
end
-- Each call names the entries before it: a late one, or one that is sent again, changes nothing.
if plan ~= ARGV[2] or redis.call('HGET', KEYS[2], 'entries') ~= ARGV[5] then
  return redis.error_reply('OUTOFSTEP these packs do not follow the last one')
end
local at, entries = 6, 0
while at <= #ARGV do
  local id = ARGV[at]
  redis.call('XADD', KEYS[3], id, 'p', ARGV[at + 1])
  local count = tonumber(ARGV[at + 2])
  at = at + 3
  for _ = 1, count do
    redis.call('HSET', done(ARGV[at]), id, ARGV[at + 1])
    at = at + 2
  end
  entries = entries + 1
end
return redis.call('HINCRBY', KEYS[2], 'entries', entries)
