#!lua
-- Adds what came since the last call to the rhythm of shops and topics, and notes silences that ended. Refused when
-- Redis is full: the caller keeps it until there is room. Times of receivers are bounded by the clock of Redis.
-- KEYS  1 rhythm  2 gaps  3 accepting
-- ARGV  1 pairs to keep  2 least silence in ms  3 ms of a period  4 notes to keep  5 cursor of the sweep
--       6 ms for which a pair is kept that does not come
--       then for each pair: field, first ms, last ms, count, longest ms
local kept, least, period = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Clocks of receivers may differ by so much.
local oldest, latest = now - tonumber(ARGV[6]), now + 60000
local left = kept - redis.call('HLEN', KEYS[1])
local function bounded(number) return math.max(0, oldest, math.min(latest, tonumber(number))) end
-- Times in which no receiver accepted webhooks, as accepting.lua writes them.
local holes = {}
for number in string.gmatch(redis.call('GET', KEYS[3]) or '', '%d+') do holes[#holes + 1] = tonumber(number) end
-- Milliseconds between two times in which webhooks could come.
local function open(from, to)
  local sum = math.max(0, to - from)
  for at = 2, #holes - 1, 2 do
    sum = sum - math.max(0, math.min(to, holes[at + 1]) - math.max(from, holes[at]))
  end
  return math.max(0, sum)
end
-- first ms, last ms, count, longest silence of this period and of the one before, number of the period
local function read(text)
  local pair = {}
  for number in string.gmatch(text, '%d+') do pair[#pair + 1] = tonumber(number) end
  if #pair ~= 6 then return nil end
  -- A clock that was ahead wrote it.
  pair[2] = math.min(pair[2], now)
  pair[1] = math.min(pair[1], pair[2])
  pair[6] = math.min(pair[6], math.floor(latest / period))
  return pair
end
local function write(field, pair)
  for at = 1, 6 do pair[at] = string.format('%.0f', pair[at]) end
  redis.call('HSET', KEYS[1], field, table.concat(pair, ' '))
end
for i = 7, #ARGV, 5 do
  local field, count = ARGV[i], tonumber(ARGV[i + 3])
  local first = bounded(ARGV[i + 1])
  local last = math.max(first, bounded(ARGV[i + 2]))
  local longest = math.min(tonumber(ARGV[i + 4]), last - first)
  local text = redis.call('HGET', KEYS[1], field)
  local pair = text and read(text)
  if pair then
    -- While no receiver accepted webhooks, nothing could come: that is no silence. What was before and after is one.
    local silence = open(pair[2], first)
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
    local this = math.floor(last / period)
    if this == pair[6] + 1 then
      pair[5], pair[4] = pair[4], 0
    elseif this > pair[6] then
      pair[5], pair[4] = 0, 0
    end
    pair[1], pair[2] = math.min(pair[1], first), math.max(pair[2], last)
    pair[3], pair[4], pair[6] = pair[3] + count, math.max(pair[4], longest), math.max(pair[6], this)
  elseif text or left > 0 then
    if not text then left = left - 1 end
    pair = {first, last, count, longest, 0, math.floor(last / period)}
  end
  if pair then write(field, pair) end
end
-- Pairs that were not seen for long make room for others.
local swept = redis.call('HSCAN', KEYS[1], ARGV[5], 'COUNT', 100)
for i = 1, #swept[2], 2 do
  local field, text = swept[2][i], swept[2][i + 1]
  local pair = read(text)
  if not pair or pair[2] < oldest then
    redis.call('HDEL', KEYS[1], field)
  elseif tonumber(string.match(text, '^%d+ (%d+)')) > latest then
    write(field, pair)
  end
end
return swept[1]
