-- Records as they are, with their versions. KEYS: head, records, order, expiries.
-- ARGV: seen, and for each record its key, version, expiry and value.
redis.call('HLEN', KEYS[2]) -- a key that is not ours is met here, with nothing written
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[4])
for position = 2, #ARGV, 4 do version = math.max(version, tonumber(ARGV[position + 1])) end
keep_head()
for position = 2, #ARGV, 4 do
  local key, expires = ARGV[position], ARGV[position + 2]
  redis.call('HSET', KEYS[2], key, ARGV[position + 1] .. expires .. ARGV[position + 3])
  redis.call('ZADD', KEYS[3], 0, key)
  if expires ~= NEVER then redis.call('ZADD', KEYS[4], expires, key) else redis.call('ZREM', KEYS[4], key) end
end
return { 0, now, version }
