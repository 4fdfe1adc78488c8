#!lua
-- Adds what came since the last call to the rhythm of shops and topics, and notes silences that ended. Refused when
-- Redis is full: the caller keeps it until there is room.
-- KEYS  1 rhythm  2 gaps
-- ARGV  1 pairs to keep  2 least silence in ms  3 ms of a period  4 notes to keep  5 cursor of the sweep
--       6 oldest last time of a pair that is kept; then for each pair: field, first ms, last ms, count, longest ms
local kept, least, period = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local left = kept - redis.call('HLEN', KEYS[1])
local function whole(number) return string.format('%.0f', number) end
local function read(text)
  local value = {}
  for number in string.gmatch(text, '%d+') do value[#value + 1] = tonumber(number) end
  return value
end
for i = 7, #ARGV, 5 do
  local field = ARGV[i]
  local first, last, count, longest = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local text = redis.call('HGET', KEYS[1], field)
  -- first ms, last ms, count, longest silence of this period and of the one before, number of the period
  local pair
  if text then
    pair = read(text)
    local silence = math.max(0, first - pair[2])
    local usual = math.max(pair[4], pair[5])
    -- The same rule is in queue/src/rhythm.rs, for silences that last.
    local is_known = pair[3] >= 20 and pair[2] - pair[1] >= 24 * least
    if is_known and silence > math.max(least, 2 * usual) then
      local space = string.find(field, ' ', 1, true)
      local note = {
        reason = 'silent', shop = string.sub(field, 1, space - 1), topic = string.sub(field, space + 1),
        from_ms = pair[2], to_ms = first, count = 0,
      }
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'g', cjson.encode(note))
    end
    longest = math.max(longest, silence)
    local now = math.floor(last / period)
    if now == pair[6] + 1 then
      pair[5], pair[4] = pair[4], 0
    elseif now > pair[6] then
      pair[5], pair[4] = 0, 0
    end
    pair[1], pair[2] = math.min(pair[1], first), math.max(pair[2], last)
    pair[3], pair[4], pair[6] = pair[3] + count, math.max(pair[4], longest), math.max(pair[6], now)
  elseif left > 0 then
    left = left - 1
    pair = {first, last, count, longest, 0, math.floor(last / period)}
  end
  if pair then
    for at = 1, 6 do pair[at] = whole(pair[at]) end
    redis.call('HSET', KEYS[1], field, table.concat(pair, ' '))
  end
end
-- Pairs that were not seen for long make room for others.
local swept = redis.call('HSCAN', KEYS[1], ARGV[5], 'COUNT', 100)
for i = 1, #swept[2], 2 do
  local pair = read(swept[2][i + 1])
  if (pair[2] or 0) < tonumber(ARGV[6]) then redis.call('HDEL', KEYS[1], swept[2][i]) end
end
return swept[1]
