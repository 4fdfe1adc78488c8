#!lua flags=allow-oom
-- Notes which run of Redis is in use. Returns the one that was noted before, and the newest id of the main stream.
-- KEYS  1 stream  2 run
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local before = redis.call('GET', KEYS[2]) or ''
if before ~= run then redis.call('SET', KEYS[2], run) end
local newest = '0-0'
local about = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not about.err then
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then newest = about[i + 1] end
  end
end
return {before, run, newest}
