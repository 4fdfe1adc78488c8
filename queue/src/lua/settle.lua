#!lua flags=allow-oom
-- Records what a consumer has finished, completely or not at all, and only for the consumer's
-- leader.
-- KEYS  1 stream  2 counts  3 leader  4 done  5 replays  6 dead  7 dead bytes  8 settled
--       9 seen  10 history  11 controls  12 dropping
--       13 chunks  14 chunks done  15 lanes  16 barriers  17 leads  18 retries
--       19 retries of the main stream
-- ARGV  1 token  2 number  3 consumer  4 corrupt prefix
--       5 cursor ('' = stays)  6 entries passed  7 webhooks passed  8 settled after the cursor
--       9 mark of the settlement before this one ('' = there was none yet)
--       10 fingerprints of delivered webhooks  11 time in ms before which records may be deleted
--       12 records for the history ('' = none)  13 webhooks dropped by order
--       14 version of the controls that are carried out ('' = none new)  15 of those that are known
--       16 webhooks that wait in chunks  17 time in ms at which the oldest was accepted (0 = none)
--       then lists, each after its length:
--       corrupt (id)  corrupt replays (id)  bits (id, bits)  whole (id)  settled replays (id)
--       dead (pack, webhook id, shop, topic, resource, delivery id, reason, status, attempts,
--       answer)
--       corrupt chunks (id)
--       fields to set (number of the key, field, value)  to delete (number of the key, field)
local stream, counts, consumer = KEYS[1], KEYS[2], ARGV[3]
local leader = redis.call('GET', KEYS[3])
if not leader or string.match(leader, '^[^:]*') ~= ARGV[1] then
  return redis.error_reply('FENCED another instance is the leader')
end
-- The same settlement again, because its reply was lost: it is already applied.
local mark = ARGV[1] .. ':' .. ARGV[2]
local last = redis.call('GET', KEYS[8]) or ''
if last == mark then return redis.status_reply('OK') end
-- The last settlement is not the one that this one names as its predecessor. Either this is a late
-- copy, or Redis came back without settlements that it had confirmed.
if last ~= ARGV[9] then
  return redis.error_reply('NOGROUP redis came back with older data')
end

local at = 18
local function each(width, apply)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    apply(unpack(ARGV, at, at + width - 1))
    at = at + width
  end
end

local own, own_through, lowest, lowest_through
local function id_parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
-- Ids are compared as numbers: as text, 1-10 would come before 1-9.
local function is_before(a, b)
  local a_ms, a_seq = id_parts(a)
  local b_ms, b_seq = id_parts(b)
  return a_ms < b_ms or (a_ms == b_ms and a_seq < b_seq)
end
local groups = redis.pcall('XINFO', 'GROUPS', stream)
if groups.err then groups = {} end
for _, reply in ipairs(groups) do
  local group = {}
  for i = 1, #reply, 2 do group[reply[i]] = reply[i + 1] end
  local cursor = group['last-delivered-id']
  local through = tonumber(redis.call('HGET', counts, 'through:' .. group.name) or 0)
  if group.name == consumer then
    own = group
    if ARGV[5] ~= '' and is_before(cursor, ARGV[5]) then
      cursor, through = ARGV[5], through + tonumber(ARGV[7])
      own_through = through
    end
  end
  if not lowest or is_before(cursor, lowest) then lowest, lowest_through = cursor, through end
end
if not own then return redis.error_reply('NOGROUP the consumer is not registered') end
-- A new cursor is an entry that was read. If it is missing, Redis lost it. Entries that were
-- appended since then, perhaps with a slower clock and lower ids, are different ones: they must not
-- be trimmed. XRANGE copies the whole pack into this script. XDEL does not, and also shows whether
-- the entry is there: it is used where the entry is trimmed below, and not to be set aside.
if ARGV[5] ~= '' and is_before(own['last-delivered-id'], ARGV[5]) then
  local found
  if lowest == ARGV[5] and ARGV[at] == '0' then
    found = redis.call('XDEL', stream, ARGV[5])
  else
    found = #redis.call('XRANGE', stream, ARGV[5], ARGV[5])
  end
  if found == 0 then return redis.error_reply('NOGROUP redis came back with older data') end
end

each(1, function(id)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if entry then redis.call('SET', ARGV[4] .. id, entry[2][2] or '', 'NX') end
end)
each(1, function(id)
  local entry = redis.call('XRANGE', KEYS[5], id, id)[1]
  if entry then redis.call('SET', ARGV[4] .. 'replay:' .. id, entry[2][2] or '', 'NX') end
  redis.call('XDEL', KEYS[5], id)
end)
-- One command for many packs, in the AOF, too.
local function set_from(key)
  local first, last = at + 1, at + 2 * tonumber(ARGV[at])
  for from = first, last, 1000 do
    redis.call('HSET', key, unpack(ARGV, from, math.min(from + 999, last)))
  end
  at = last + 1
end
set_from(KEYS[4])
local is_dropping = redis.call('EXISTS', KEYS[12]) == 1
-- An order that the consumer has not read yet may name, by its pack, a webhook that moved into a
-- lane.
local are_names_known = is_dropping
  and (redis.call('HGET', KEYS[11], 'version') or '0') == ARGV[15]
local function delete_from(keys)
  local first, last = at + 1, at + tonumber(ARGV[at])
  for from = first, last, 1000 do
    for _, key in ipairs(keys) do
      redis.call('HDEL', key, unpack(ARGV, from, math.min(from + 999, last)))
    end
  end
  at = last + 1
end
delete_from(are_names_known and {KEYS[4], KEYS[12]} or {KEYS[4]})
each(1, function(id)
  redis.call('XDEL', KEYS[5], id)
  if is_dropping then redis.call('HDEL', KEYS[12], 'replay:' .. id) end
end)
-- This comes before the dead letters: the clock advances within a script, and a record of the
-- history must not be newer than its dead letter.
if ARGV[12] ~= '' then
  redis.call('XADD', KEYS[10], 'MINID', '~', ARGV[11], '*', 'h', ARGV[12])
end
local dead = {'shop', 'topic', 'res', 'wid', 'reason', 'status', 'attempts', 'answer'}
each(10, function(pack, id, ...)
  local values = {...}
  local size = #pack
  local fields = {'p', pack, 'id', id}
  for i, name in ipairs(dead) do
    fields[#fields + 1] = name
    fields[#fields + 1] = values[i]
    size = size + #values[i]
  end
  fields[#fields + 1] = 'n'
  fields[#fields + 1] = size
  redis.call('XADD', KEYS[6], '*', unpack(fields))
  redis.call('INCRBY', KEYS[7], size)
end)
each(1, function(id)
  local chunk = redis.call('HGET', KEYS[13], id)
  if chunk then redis.call('SET', ARGV[4] .. 'chunk:' .. id, chunk, 'NX') end
  redis.call('HDEL', KEYS[13], id)
  redis.call('HDEL', KEYS[14], id)
end)
-- One call for many fields of a key: lanes of one webhook each have few fields each.
local function all_of_each_key(command, width)
  local fields_of = {}
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local fields = fields_of[ARGV[at]] or {}
    fields_of[ARGV[at]] = fields
    for i = 1, width do fields[#fields + 1] = ARGV[at + i] end
    at = at + 1 + width
  end
  for key, fields in pairs(fields_of) do
    for from = 1, #fields, 1000 do
      redis.call(command, KEYS[tonumber(key)],
        unpack(fields, from, math.min(from + 999, #fields)))
    end
  end
end
all_of_each_key('HSET', 2)
all_of_each_key('HDEL', 1)

if ARGV[10] ~= '' then
  redis.call('XADD', KEYS[9], 'MINID', '~', ARGV[11], '*', 'd', ARGV[10])
end
if ARGV[13] ~= '0' then redis.call('HINCRBY', KEYS[11], 'dropped', ARGV[13]) end
if ARGV[14] ~= '' then redis.call('HSET', KEYS[11], 'applied', ARGV[14]) end

-- No webhook waits in chunks: fields that a lost chunk left in these keys belong to nothing.
if ARGV[16] == '0' then redis.call('UNLINK', KEYS[13], KEYS[14], KEYS[18]) end

redis.call('HSET', counts, 'open:' .. consumer, ARGV[8], 'lanes:' .. consumer, ARGV[16],
  'oldest:' .. consumer, ARGV[17])
if ARGV[5] ~= '' and is_before(own['last-delivered-id'], ARGV[5]) then
  local read = (tonumber(own['entries-read'] or 0) or 0) + tonumber(ARGV[6])
  redis.call('XGROUP', 'SETID', stream, consumer, ARGV[5], 'ENTRIESREAD', read)
  redis.call('HSET', counts, 'through:' .. consumer, own_through, 'trimmed', lowest_through)
  local ms, seq = string.match(lowest, '^(%d+)-(%d+)$')
  redis.call('XTRIM', stream, 'MINID', ms .. '-' .. string.format('%.0f', tonumber(seq) + 1))
end
-- Nothing is left after the cursor. Correct the counts: they miss packs that could not be read,
-- which have no count.
if ARGV[5] ~= '' and redis.call('XLEN', stream) == 0 then
  local appended = redis.call('HGET', counts, 'appended') or 0
  for _, reply in ipairs(groups) do
    redis.call('HSET', counts, 'through:' .. reply[2], appended, 'trimmed', appended)
  end
end
redis.call('SET', KEYS[8], mark)
return redis.status_reply('OK')
