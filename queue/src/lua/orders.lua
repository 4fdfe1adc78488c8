#!lua flags=no-writes
-- An operator's orders and what is to be dropped, as of one moment. Not in MULTI, which a full Redis
-- refuses even for reads.
-- KEYS  1 orders  2 dropping
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
