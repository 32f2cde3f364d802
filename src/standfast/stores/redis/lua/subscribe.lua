-- Who listens to what. A member of the topics is a handle (32 characters) and a topic; its score is when it runs out.
-- KEYS: head, topics. ARGV: seen, microseconds to live, how many to remove, those, and those that stay.
local changed = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
local removed = tonumber(ARGV[3])
local until_then = string.format('%.0f', now + tonumber(ARGV[2]))
for position = 4, #ARGV do
  if position < 4 + removed then
    changed = changed + redis.call('ZREM', KEYS[2], ARGV[position])
  else
    changed = changed + redis.call('ZADD', KEYS[2], until_then, ARGV[position])
  end
end
if changed > 0 then
  generation = generation + 1
  keep_head()
end
return { 0, now, version, generation }
