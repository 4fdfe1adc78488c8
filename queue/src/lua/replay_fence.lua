#!lua flags=no-writes
-- Redactions as far as a replay has to know them. It is another text after each note of a redaction and each record of
-- a purge. replay_feed.lua makes the same one.
-- KEYS  1 redactions  2 times at which they were noted  3 forgotten
local newest = redis.call('ZRANGE', KEYS[2], -1, -1)[1] or ''
local purge = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
return redis.call('HLEN', KEYS[1]) .. ' ' .. newest .. ' ' .. (purge and purge[1] or '')
