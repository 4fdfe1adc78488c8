#!lua flags=no-writes
-- Returns an operator's controls and the webhooks to drop, from one moment. Not in MULTI, which a
-- full Redis refuses even for reads.
-- KEYS  1 controls  2 dropping
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
