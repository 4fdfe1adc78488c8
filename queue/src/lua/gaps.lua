#!lua flags=allow-oom
-- Notes webhooks that may be missing. Refused webhooks are unverified: those of a shop and topic that never sent
-- one that was verified are noted as of any shop, so that strangers can't fill the notes.
-- KEYS  1 gaps  2 rhythm
-- ARGV  1 number of notes to keep  2 milliseconds for which they are kept  3... notes as JSON
local function add(note)
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'g', note)
end
local any
for i = 3, #ARGV do
  local note = cjson.decode(ARGV[i])
  local is_claim = note.reason == 'refused' and note.shop ~= ''
  if is_claim and redis.call('HEXISTS', KEYS[2], note.shop .. ' ' .. note.topic) == 0 then
    any = any or { reason = 'refused', shop = '', topic = '', from_ms = note.from_ms, to_ms = note.to_ms, count = 0 }
    any.from_ms = math.min(any.from_ms, note.from_ms)
    any.to_ms = math.max(any.to_ms, note.to_ms)
    any.count = any.count + note.count
  else
    add(ARGV[i])
  end
end
if any then add(cjson.encode(any)) end
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2]
if oldest > 0 then redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest)) end
return #ARGV - 2
