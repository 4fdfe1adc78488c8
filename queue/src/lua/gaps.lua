#!lua flags=allow-oom
-- Notes webhooks that may be missing. Refused webhooks are unverified: those of a shop and topic that never sent
-- one that was verified are noted as of any shop, so that strangers can't fill the notes.
-- KEYS  1 gaps  2 rhythm
-- ARGV  1 number of notes to keep  2 milliseconds for which they are kept  3... notes as JSON
local function add(note)
  redis.call('XADD', KEYS[1], '*', 'g', note)
end
-- Extends the note of any shop and topic with this reason.
local function join(joined, note)
  local any = joined[note.reason]
  if not any then
    any = { reason = note.reason, shop = '', topic = '', from_ms = note.from_ms, to_ms = note.to_ms, count = 0 }
    joined[note.reason] = any
  end
  any.from_ms = math.min(any.from_ms, note.from_ms)
  any.to_ms = math.max(any.to_ms, note.to_ms)
  any.count = any.count + note.count
end
local function add_all(joined)
  for _, any in pairs(joined) do add(cjson.encode(any)) end
end
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2]
if oldest > 0 then redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest)) end
-- The oldest notes, if there are too many, become one of any shop: their time stays listed.
local length = redis.call('XLEN', KEYS[1])
local excess = length + #ARGV - 2 - ARGV[1]
if excess > 0 then
  local left_out = {}
  local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.max(1, excess) + 500)
  for _, entry in ipairs(entries) do
    -- One that can't be read is no note.
    pcall(function()
      local note = cjson.decode(entry[2][2])
      -- Other shops were not silent.
      if note.reason ~= 'silent' then join(left_out, note) end
    end)
  end
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', math.max(0, length - #entries))
  add_all(left_out)
end
local any = {}
for i = 3, #ARGV do
  local note = cjson.decode(ARGV[i])
  local is_claim = note.reason == 'refused' and note.shop ~= ''
  if is_claim and redis.call('HEXISTS', KEYS[2], note.shop .. ' ' .. note.topic) == 0 then
    join(any, note)
  else
    add(ARGV[i])
  end
end
add_all(any)
return #ARGV - 2
