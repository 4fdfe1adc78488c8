#!lua flags=allow-oom
-- Writes a record of the audit, and deletes the oldest beyond its bounds. A record of the last day is not deleted because
-- of their number: beyond the hard bound, a change is refused.
-- KEYS  1 audit
-- ARGV  1 record as JSON  2 id of the record that it replaces ('' = none)  3 number of records to keep
--       4 milliseconds for which they are kept  5 hard bound of their number
-- Returns the id, or '' if the number of a day is beyond the hard bound. The end of a change is always written, and once:
-- after a lost answer, the caller sends it again.
if ARGV[2] ~= '' and #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) == 0 then
  local last = redis.call('XREVRANGE', KEYS[1], '+', ARGV[2], 'COUNT', 1000)
  for _, record in ipairs(last) do
    if record[2][2] == ARGV[1] then return record[1] end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('XLEN', KEYS[1]) - ARGV[3]
if over > 0 then
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(over, 100))
  for _, record in ipairs(first) do
    local written = tonumber(string.match(record[1], '^%d+'))
    if written < now - 86400000 then redis.call('XDEL', KEYS[1], record[1]) end
  end
end
if ARGV[2] == '' and redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[5]) then return '' end
local id = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1])
if ARGV[2] ~= '' then redis.call('XDEL', KEYS[1], ARGV[2]) end
local oldest = now - ARGV[4]
if oldest > 0 then redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest)) end
return id
