#!lua
-- Appends webhooks of a replay to the consumer's replays, and advances the record of the replay with them. Refused on a
-- full Redis, like every append.
-- Refused also if the redactions are others than those that the process knows: it may hold webhooks of people who are
-- to be forgotten, or were.
-- KEYS  1 record  2 shops that are left  3 replays  4 stream  5 redactions  6 times at which they were noted  7 forgotten
-- ARGV  1 token of the feeding process  2 number of this step  3 id of the replay
--       4 position after which webhooks are to be fed  5 webhooks that were passed over  6 now, in ms
--       7 consumer  8 redactions that the process knows, as replay_fence.lua returns them
--       then lists, each after its length:
--       webhooks (pack, webhook id, shop)  left (shop, position of its next webhook; '' = nothing is left)
-- True if the consumer has a cursor.
local function is_registered(stream, consumer)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return false end
  for _, group in ipairs(groups) do
    for i = 1, #group, 2 do
      if group[i] == 'name' and group[i + 1] == consumer then return true end
    end
  end
  return false
end
-- Changes with each note of a redaction and each record of a purge: see replay_fence.lua.
local function fence(redactions, noted, forgotten)
  local newest = redis.call('ZRANGE', noted, -1, -1)[1] or ''
  local purge = redis.call('XREVRANGE', forgotten, '+', '-', 'COUNT', 1)[1]
  return redis.call('HLEN', redactions) .. ' ' .. newest .. ' ' .. (purge and purge[1] or '')
end
local record = redis.call('HMGET', KEYS[1], 'owner', 'state', 'step', 'last')
if not record[1] then return {'gone'} end
local reply = {'fed'}
-- The same step again, because its reply was lost: it is already applied.
if record[1] == ARGV[1] and record[3] == ARGV[2] then
  for id in string.gmatch(record[4], '%S+') do reply[#reply + 1] = id end
  return reply
end
if record[1] ~= ARGV[1] then return {'taken'} end
if record[2] ~= 'running' then return {record[2]} end
if tonumber(record[3]) + 1 ~= tonumber(ARGV[2]) then return {'older'} end
if not is_registered(KEYS[4], ARGV[7]) then return {'unregistered'} end
if fence(KEYS[5], KEYS[6], KEYS[7]) ~= ARGV[8] then return {'redacted'} end
local at = 9
local function each(width, apply)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    apply(unpack(ARGV, at, at + width - 1))
    at = at + width
  end
end
each(3, function(pack, webhook, shop)
  reply[#reply + 1] =
    redis.call('XADD', KEYS[3], '*', 'p', pack, 'id', webhook, 'replay', ARGV[3], 'shop', shop)
end)
each(2, function(shop, position)
  if position == '' then
    redis.call('HDEL', KEYS[2], shop)
  else
    redis.call('HSET', KEYS[2], shop, position)
  end
end)
redis.call('HINCRBY', KEYS[1], 'fed', #reply - 1)
redis.call('HINCRBY', KEYS[1], 'skipped', ARGV[5])
redis.call('HSET', KEYS[1], 'step', ARGV[2], 'after', ARGV[4], 'changed', ARGV[6],
  'last', table.concat(reply, ' ', 2))
return reply
