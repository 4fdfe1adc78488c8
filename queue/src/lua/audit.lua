#!lua flags=allow-oom
-- Writes a record of the audit, and deletes the oldest beyond its bounds. A record of the last day is not deleted because
-- of their number: beyond the hard bound, a change is refused.
-- KEYS  1 audit  2 time for which records are kept
-- ARGV  1 record as JSON ('' = none: only delete)  2 id of the record that it replaces ('' = none)
--       3 number of records to keep  4 milliseconds for which they are kept  5 hard bound of their number
--       6 longest | exactly: keep this time in KEYS 2 if it is longer than the one there, or in any case ('' = do not)
--       7 milliseconds within which the same record is not written again ('' = it always is)
-- Returns the id, or '' if the number of a day is beyond the hard bound; without a record, the number of those that were
-- deleted. The end of a change is always written, and once: after a lost answer, the caller sends it again.
if ARGV[2] ~= '' and #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) == 0 then
  local last = redis.call('XREVRANGE', KEYS[1], '+', ARGV[2], 'COUNT', 1000)
  for _, record in ipairs(last) do
    if record[2][2] == ARGV[1] then return record[1] end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[7] ~= '' then
  local since = string.format('%.0f', math.max(0, now - ARGV[7]))
  for _, record in ipairs(redis.call('XREVRANGE', KEYS[1], '+', since, 'COUNT', 1000)) do
    if record[2][2] == ARGV[1] then return record[1] end
  end
end
-- A process that was set to a shorter time than another one, or to none, deletes nothing that the other keeps.
local stored = tonumber(redis.call('HGET', KEYS[2], 'ms') or 0)
local keep = tonumber(ARGV[4])
if ARGV[6] == 'exactly' or (ARGV[6] == 'longest' and keep > stored) then
  redis.call('HSET', KEYS[2], 'ms', ARGV[4])
elseif stored > 0 then
  keep = stored
end
local deleted = 0
local over = redis.call('XLEN', KEYS[1]) - ARGV[3]
if over > 0 then
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(over, 100))
  for _, record in ipairs(first) do
    local written = tonumber(string.match(record[1], '^%d+'))
    if written < now - 86400000 then deleted = deleted + redis.call('XDEL', KEYS[1], record[1]) end
  end
end
if now > keep then
  -- XTRIM frees whole nodes, which costs little. The node that holds the boundary is left to XDEL.
  local oldest = string.format('%.0f', now - keep)
  deleted = deleted + redis.call('XTRIM', KEYS[1], 'MINID', '~', oldest)
  local old = redis.call('XRANGE', KEYS[1], '-', '(' .. oldest .. '-0', 'COUNT', 100)
  for _, record in ipairs(old) do deleted = deleted + redis.call('XDEL', KEYS[1], record[1]) end
end
if ARGV[1] == '' then return deleted end
if ARGV[2] == '' and redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[5]) then return '' end
local id = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1])
-- After a loss of data, the record to replace may be gone, and the new one may have its id.
if ARGV[2] ~= '' and ARGV[2] ~= id then redis.call('XDEL', KEYS[1], ARGV[2]) end
return id
