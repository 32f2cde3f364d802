-- Whether this user may do all that the other scripts do. KEYS: four that nobody uses. ARGV: 0, a channel.
-- It comes after the common part, which has done TIME and GET; what it writes is gone at its end.
keep_head()
redis.call('HSET', KEYS[2], 'a', 'a')
redis.call('HMGET', KEYS[2], 'a')
redis.call('HGET', KEYS[2], 'a')
redis.call('HLEN', KEYS[2])
redis.call('HSCAN', KEYS[2], 0, 'COUNT', 1)
redis.call('HDEL', KEYS[2], 'a')
redis.call('ZADD', KEYS[3], 0, 'a')
redis.call('ZCARD', KEYS[3])
redis.call('ZRANGEBYLEX', KEYS[3], '-', '+', 'LIMIT', 0, 1)
redis.call('ZREVRANGEBYLEX', KEYS[3], '+', '-', 'LIMIT', 0, 1)
redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '+inf', 'LIMIT', 0, 1)
redis.call('ZREM', KEYS[3], 'a')
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '+inf')
redis.call('PUBLISH', ARGV[2], '')
redis.call('DEL', KEYS[1])
return { 0, now, version }
