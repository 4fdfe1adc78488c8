#!lua flags=allow-oom
-- Returns which run of Redis was noted, which one this is, and the newest id of the main stream. With arguments, notes this run,
-- and with it what it may have lost: a loss that is not noted yet is found again.
-- KEYS  1 stream  2 run  3 gaps
-- ARGV  none, or: 1 run that was noted before  2 this run  3 number of notes to keep  4 note as JSON; may be empty
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local before = redis.call('GET', KEYS[2]) or ''
if ARGV[1] then
  if ARGV[4] ~= '' then redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'g', ARGV[4]) end
  if before == ARGV[1] and run == ARGV[2] and before ~= run then redis.call('SET', KEYS[2], run) end
end
local newest = '0-0'
local about = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not about.err then
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then newest = about[i + 1] end
  end
end
return {before, run, newest}
