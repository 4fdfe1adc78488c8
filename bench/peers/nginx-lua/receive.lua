-- Checks the signature with libcrypto, which nginx has loaded, and appends the webhook to a stream of
-- Redis over a kept connection. Debian has no lua-resty-redis: these are the few lines of it that are needed.
local ffi = require "ffi"

ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *HMAC(const void *md, const void *key, int key_len, const unsigned char *data, size_t data_len,
                    unsigned char *out, unsigned int *out_len);
]]

local secret, socket_path = os.getenv("WEBHOOK_SECRET"), "unix:" .. os.getenv("REDIS_SOCKET")
-- A kept connection for each request that may wait at once.
local pool = math.max(256, tonumber(os.getenv("CONNECTIONS")))
local digest = ffi.new("unsigned char[32]")

local function signed(body)
   local given = ngx.var.http_x_shopify_hmac_sha256
   ffi.C.HMAC(ffi.C.EVP_sha256(), secret, #secret, body, #body, digest, nil)
   return given == ngx.encode_base64(ffi.string(digest, 32))
end

-- A command as Redis reads it.
local function command(...)
   local parts = { "*" .. select("#", ...) }
   for _, part in ipairs { ... } do
      parts[#parts + 1] = "$" .. #part
      parts[#parts + 1] = part
   end
   return table.concat(parts, "\r\n") .. "\r\n"
end

local function append(body)
   local socket = ngx.socket.tcp()
   socket:settimeout(5000)
   if not socket:connect(socket_path) then return false end
   socket:send(command("XADD", "webhooks", "*", "headers", ngx.req.raw_header(), "body", body))
   -- "$15" and the id; an error begins with "-".
   local head = socket:receive("*l")
   if not head or head:sub(1, 1) ~= "$" then return false end
   if not socket:receive("*l") then return false end
   socket:setkeepalive(0, pool)
   return true
end

return function()
   local body = ngx.req.get_body_data()
   if not body or not signed(body) then return ngx.exit(401) end
   if not append(body) then return ngx.exit(503) end
   ngx.status = 200
   ngx.exit(200)
end
