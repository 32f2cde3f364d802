-- Expired records. KEYS: head, records, order, expiries. ARGV: seen, how many at most.
local keys = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[2])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
for from = 1, #keys, 1000 do
  local last = math.min(from + 999, #keys)
  redis.call('HDEL', KEYS[2], unpack(keys, from, last))
  redis.call('ZREM', KEYS[3], unpack(keys, from, last))
  redis.call('ZREM', KEYS[4], unpack(keys, from, last))
end
return { 0, now, version, #keys }
