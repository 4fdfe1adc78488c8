#!lua flags=allow-oom
-- Notes times in which a receiver accepted webhooks. A time in which none did is a hole: nothing could come. The hole before
-- the start of a process is also noted as a gap, because a process that was killed noted nothing of it.
-- KEYS  1 accepting  2 gaps
-- ARGV  1 least ms of a hole that is noted as a gap ('' = none is)  2 notes to keep  3 ms for which holes are kept
--       4 holes to keep  5 ms of the receiver's clock  then for each time, oldest first: from ms, to ms
-- Value: ms until which webhooks were accepted, then for each hole, oldest first: from ms, to ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Clocks of receivers may differ by so much.
local oldest, latest = now - tonumber(ARGV[3]), now + 60000
-- One that is further ahead is corrected: its times are earlier by as much. If each were cut to the latest time, none would begin
-- where the one before had ended, and all time would be a hole.
local lead = tonumber(ARGV[5]) - now
local ahead = lead > 60000 and lead or 0
local function bounded(number) return math.max(0, oldest, math.min(latest, tonumber(number) - ahead)) end
local known = {}
for number in string.gmatch(redis.call('GET', KEYS[1]) or '', '%d+') do known[#known + 1] = tonumber(number) end
local accepted = known[1] and math.min(known[1], latest)
local holes = {}
for at = 2, #known - 1, 2 do
  if known[at + 1] > oldest then holes[#holes + 1] = {known[at], known[at + 1]} end
end
for at = 6, #ARGV - 1, 2 do
  local from = bounded(ARGV[at])
  -- It is corrected a little differently with each report, and near the limit now and then not at all.
  if lead > 50000 and accepted and from - accepted <= 60000 then from = math.min(from, accepted) end
  local to = math.max(from, bounded(ARGV[at + 1]))
  -- What another receiver did not accept meanwhile, this one did.
  local left = {}
  for _, hole in ipairs(holes) do
    if hole[1] < from then left[#left + 1] = {hole[1], math.min(hole[2], from)} end
    if hole[2] > to then left[#left + 1] = {math.max(hole[1], to), hole[2]} end
  end
  holes = left
  if accepted and from > accepted then
    holes[#holes + 1] = {accepted, from}
    if at == 6 and ARGV[1] ~= '' and from - accepted >= tonumber(ARGV[1]) then
      local note = { reason = 'down', shop = '', topic = '', from_ms = accepted, to_ms = from, count = 0 }
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'g', cjson.encode(note))
    end
  end
  accepted = math.max(accepted or to, to)
end
-- Holes that only a moment divides are one.
local joined = {}
for _, hole in ipairs(holes) do
  local last = joined[#joined]
  if last and hole[1] <= last[2] then last[2] = math.max(last[2], hole[2]) else joined[#joined + 1] = hole end
end
holes = joined
while #holes > tonumber(ARGV[4]) do table.remove(holes, 1) end
if not accepted then return 0 end
local value = {string.format('%.0f', accepted)}
for _, hole in ipairs(holes) do value[#value + 1] = string.format('%.0f %.0f', hole[1], hole[2]) end
redis.call('SET', KEYS[1], table.concat(value, ' '))
return #holes
