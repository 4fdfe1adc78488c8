#!lua flags=allow-oom
-- Writes a record of the audit, and deletes the oldest beyond its bounds.
-- KEYS  1 audit
-- ARGV  1 record as JSON  2 id of the record that it replaces ('' = none)  3 number of records to keep
--       4 milliseconds for which they are kept
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'r', ARGV[1])
if ARGV[2] ~= '' then redis.call('XDEL', KEYS[1], ARGV[2]) end
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[4]
if oldest > 0 then redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest)) end
return id
