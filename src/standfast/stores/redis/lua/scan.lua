-- A page of live records, in the order of their bytes. KEYS: head, records, order.
-- ARGV: seen, lower bound, upper bound, 1 for backwards, how many, how many bytes about, how many keys to look at.
local lower, upper, backwards, wanted = ARGV[2], ARGV[3], ARGV[4] == '1', 2 * tonumber(ARGV[5])
local found, bytes, looked, stopped = {}, 0, 0, false
while #found < wanted and not stopped do
  local count = math.min((wanted - #found) / 2, 100)
  local keys
  if backwards then
    keys = redis.call('ZREVRANGEBYLEX', KEYS[3], upper, lower, 'LIMIT', 0, count)
  else
    keys = redis.call('ZRANGEBYLEX', KEYS[3], lower, upper, 'LIMIT', 0, count)
  end
  if #keys == 0 then break end
  for index, raw in ipairs(redis.call('HMGET', KEYS[2], unpack(keys))) do
    if is_live(raw) then
      found[#found + 1] = keys[index]
      found[#found + 1] = raw
      bytes = bytes + #raw
    end
  end
  looked = looked + #keys
  local last = keys[#keys]
  if backwards then upper = '(' .. last else lower = '(' .. last end
  if #keys < count then break end
  if bytes >= tonumber(ARGV[6]) or looked >= tonumber(ARGV[7]) then stopped = last end
end
return { 0, now, version, found, stopped }
