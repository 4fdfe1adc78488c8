#!lua flags=allow-oom
-- Notes webhooks that may be missing. Refused webhooks are unverified: those of a shop and topic that never sent
-- one that was verified are noted as of any shop, so that strangers can't fill the notes.
-- KEYS  1 gaps  2 rhythm
-- ARGV  1 number of notes to keep  2 milliseconds for which they are kept  3... notes as JSON
local function add(note)
  redis.call('XADD', KEYS[1], '*', 'g', note)
end
-- Extends the note with this key.
local function join(joined, key, note, shop, topic)
  local one = joined[key]
  if not one then
    one = { reason = note.reason, shop = shop, topic = topic, from_ms = note.from_ms, to_ms = note.to_ms, count = 0 }
    joined[key] = one
  end
  one.from_ms = math.min(one.from_ms, note.from_ms)
  one.to_ms = math.max(one.to_ms, note.to_ms)
  one.count = one.count + note.count
end
local function add_all(joined)
  for _, one in pairs(joined) do add(cjson.encode(one)) end
end
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2]
if oldest > 0 then redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest)) end
-- The oldest notes, if there are too many, are merged: their times stay listed. Those of a shop, topic and day become one,
-- and only if that makes too little room, those of all shops do.
local length = redis.call('XLEN', KEYS[1])
local excess = length + #ARGV - 2 - ARGV[1]
if excess > 0 then
  -- Notes of a long outage repeat after as many as there are shops and topics. The near look is cheap, and often enough. After
  -- the far one there is room for the next calls.
  for _, look in ipairs({{500, 0}, {10000, 2000}}) do
    local far, room = look[1], look[2]
    local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', excess + far)
    local by_shop, by_reason, count = {}, {}, 0
    for at, entry in ipairs(entries) do
      -- One that can't be read is no note.
      pcall(function()
        local note = cjson.decode(entry[2][2])
        local day = note.reason .. ' ' .. math.floor(note.from_ms / 86400000)
        local key = day .. ' ' .. note.shop .. ' ' .. note.topic
        if not by_shop[key] then count = count + 1 end
        join(by_shop, key, note, note.shop, note.topic)
        -- Other shops were not silent.
        if at <= excess + room and note.reason ~= 'silent' then join(by_reason, day, note, '', '') end
      end)
    end
    if count + excess + room <= #entries then
      redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', length - #entries)
      add_all(by_shop)
      break
    elseif room > 0 then
      redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', math.max(0, length - excess - room))
      add_all(by_reason)
    end
  end
end
local any = {}
for i = 3, #ARGV do
  local note = cjson.decode(ARGV[i])
  local is_claim = note.reason == 'refused' and note.shop ~= ''
  if is_claim and redis.call('HEXISTS', KEYS[2], note.shop .. ' ' .. note.topic) == 0 then
    join(any, note.reason, note, '', '')
  else
    add(ARGV[i])
  end
end
add_all(any)
return #ARGV - 2
