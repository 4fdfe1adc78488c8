-- Lets wrk send ready-made webhooks: a file of `generate --format wrk`, in which each request
-- follows its length in ten decimal digits. The requests are read before the first is sent. Bodies
-- and signatures are sent in turn. Webhook id, event id, product and time are new in each request,
-- so that none is a duplicate of another: that joins a few strings, and nothing is signed again.
--
--   wrk -t2 -c64 -d10s --latency -s bench/wrk.lua http://127.0.0.1:8080 -- requests.bin 2
--
-- Each of the threads (their number is the last argument again, wrk does not tell) takes every
-- n-th request of the file. At the end one line of JSON is printed.

local threads_set_up = 0

function setup(thread)
   thread:set("slice", threads_set_up)
   threads_set_up = threads_set_up + 1
end

-- Seeds the random numbers, so that neither threads nor runs share ids.
local function seed()
   local file = assert(io.open("/dev/urandom", "rb"))
   local a, b, c, d, e, f = file:read(6):byte(1, 6)
   file:close()
   math.randomseed(((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f)
end

-- A random UUID. Ids that count up would compress, and the queue would be smaller than with real ones.
local function uuid()
   local random = math.random
   return string.format("%08x-%04x-4%03x-8%03x-%012x", random(0, 0xffffffff), random(0, 0xffff),
      random(0, 0xfff), random(0, 0xfff), random(0, 0xffffffffffff))
end

-- Headers whose values are new in each request.
local NEW = {
   ["shopify-webhook-id"] = "id", ["shopify-event-id"] = "id",
   ["shopify-product-id"] = "product", ["shopify-triggered-at"] = "at",
}

local FILL = {
   id = uuid,
   product = function() return string.format("8%012d", math.random(0, 999999999999)) end,
   at = function() return at end,
}

-- Cuts a request at the values that are new. Returns the parts between them, and their kinds.
local function cut(request)
   local parts, kinds, from, at = {}, {}, 1, 1
   local head_end = assert(request:find("\r\n\r\n", 1, true), "a request without an end of its head")
   while at < head_end do
      local line_end = request:find("\r\n", at, true)
      local name, value = request:sub(at, line_end - 1):match("^([^:]+): *(.*)$")
      local kind = name and NEW[(name:lower():gsub("^x%-", ""))]
      if kind then
         parts[#parts + 1] = request:sub(from, line_end - 1 - #value)
         kinds[#kinds + 1] = kind
         from = line_end
      end
      at = line_end + 2
   end
   parts[#parts + 1] = request:sub(from)
   return parts, kinds
end

function init(args)
   local path, threads = args[1], tonumber(args[2])
   local file = assert(io.open(path, "rb"))
   requests = {}
   local number = 0
   while true do
      local length = file:read(10)
      if not length then break end
      if number % threads == slice then
         local parts, kinds = cut(file:read(tonumber(length)))
         local order = table.concat(kinds, " ")
         assert(order:find("id", 1, true), "a request without a webhook id in " .. path)
         assert(not common or common == order, "requests of two templates in " .. path)
         common, new_values = order, kinds
         requests[#requests + 1] = parts
      else
         file:seek("cur", tonumber(length))
      end
      number = number + 1
   end
   file:close()
   assert(#requests > 0, "no requests in " .. path)
   seed()
   count, sent, joined, at = #requests, 0, {}, nil
end

function request()
   local parts = requests[sent % count + 1]
   if sent % 64 == 0 then at = os.date("!%Y-%m-%dT%H:%M:%SZ") end
   sent = sent + 1
   for index = 1, #new_values do
      joined[2 * index - 1] = parts[index]
      joined[2 * index] = FILL[new_values[index]]()
   end
   joined[2 * #new_values + 1] = parts[#parts]
   return table.concat(joined)
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      'RESULT {"requests":%d,"seconds":%.6f,"non_2xx":%d,"connect":%d,"read":%d,"write":%d,' ..
      '"timeout":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d,"max_us":%d}\n',
      summary.requests, summary.duration / 1e6, errors.status, errors.connect, errors.read,
      errors.write, errors.timeout, latency:percentile(50), latency:percentile(90),
      latency:percentile(99), latency.max))
end
