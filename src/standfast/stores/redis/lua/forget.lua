-- Attempts that nobody will ask about. KEYS: head, attempts. ARGV: seen, cursor, how many microseconds old.
local page = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', 200)
local oldest = now - tonumber(ARGV[3])
for index = 1, #page[2], 2 do
  if number(page[2][index + 1], 17) < oldest then redis.call('HDEL', KEYS[2], page[2][index]) end
end
return { 0, now, version, page[1] }
