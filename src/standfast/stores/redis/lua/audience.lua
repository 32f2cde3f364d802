-- The topics that anyone listens to. KEYS: head, topics. ARGV: seen.
local members = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', now), '+inf')
return { 0, now, version, generation, members }
