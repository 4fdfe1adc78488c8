#!lua flags=allow-oom
-- Takes dead letters away: drops them, or replays them through the stream of replays, in the order
-- given. Stops after a number of bytes. Returns the number of letters that existed, and the number
-- of ids that it looked at.
-- KEYS  1 dead  2 dead bytes  3 replays  ARGV  1 drop | replay  2 bytes  3... dead ids
local taken, looked_at, left = 0, 0, tonumber(ARGV[2])
for i = 3, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if entry then
    local fields = {}
    for f = 1, #entry[2], 2 do
      fields[entry[2][f]] = entry[2][f + 1]
      left = left - #entry[2][f + 1]
    end
    if ARGV[1] == 'replay' then
      redis.call('XADD', KEYS[3], '*', 'p', fields.p, 'id', fields.id)
    end
    redis.call('XDEL', KEYS[1], ARGV[i])
    redis.call('DECRBY', KEYS[2], fields.n or 0)
    taken = taken + 1
  end
  looked_at = looked_at + 1
  if left <= 0 then break end
end
return {taken, looked_at}
