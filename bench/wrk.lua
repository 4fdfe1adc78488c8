-- Lets wrk send ready-made webhooks: a file of `generate --format wrk`, in which each request
-- follows its length in ten decimal digits. The requests are read before the first is sent; then
-- each is an index and nothing more, so that Lua does not become what is measured.
--
--   wrk -t2 -c64 -d10s --latency -s bench/wrk.lua http://127.0.0.1:8080 -- requests.bin 2
--
-- Each of the threads (their number is the last argument again, wrk does not tell) takes every
-- n-th request of the file, so no two send the same. At the end one line of JSON is printed.

local threads_set_up = 0

function setup(thread)
   thread:set("slice", threads_set_up)
   threads_set_up = threads_set_up + 1
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
         requests[#requests + 1] = file:read(tonumber(length))
      else
         file:seek("cur", tonumber(length))
      end
      number = number + 1
   end
   file:close()
   assert(#requests > 0, "no requests in " .. path)
   count, current = #requests, 0
end

function request()
   current = current % count + 1
   return requests[current]
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
