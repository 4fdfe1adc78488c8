#!lua flags=allow-oom
-- Creates the cell's id and the consumer's cursor if they do not exist.
-- KEYS  1 stream  2 cell  3 counts  4 consumers  5 rebuild
-- ARGV  1 consumer ('' = only the cell)  2 oldest | now  3 id for a new cell
if redis.call('EXISTS', KEYS[5]) == 1 then
  return redis.error_reply('RESTORING the queue is being restored from an archive')
end
if redis.call('SET', KEYS[2], ARGV[3], 'NX') then
  redis.call('HSETNX', KEYS[3], 'appended', 0)
end
local cell = redis.call('GET', KEYS[2])
if ARGV[1] == '' then return {cell, 0} end
local known = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if not known.err then
  for _, group in ipairs(known) do
    if group[2] == ARGV[1] then return {cell, 0} end
  end
end
local id, read, through = '0', 0, redis.call('HGET', KEYS[3], 'trimmed') or 0
local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not stream.err then
  local about = {}
  for i = 1, #stream, 2 do about[stream[i]] = stream[i + 1] end
  read = about['entries-added'] - about['length']
  if ARGV[2] == 'now' then
    id, read = about['last-generated-id'], about['entries-added']
    through = redis.call('HGET', KEYS[3], 'appended') or 0
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], id, 'MKSTREAM', 'ENTRIESREAD', read)
redis.call('HSET', KEYS[3], 'through:' .. ARGV[1], through, 'open:' .. ARGV[1], 0)
redis.call('HSETNX', KEYS[4], ARGV[1], 0)
return {cell, 1}
