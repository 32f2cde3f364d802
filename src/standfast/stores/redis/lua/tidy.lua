-- Keys that were left in the order without a record, see "move_or_delete". KEYS: head, records, order.
-- ARGV: seen, above which key of the order to look, how many there, and keys that were left by this handle.
local keys = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local looked = #keys
for position = 4, #ARGV do keys[#keys + 1] = ARGV[position] end
if #keys > 0 then
  local gone, raws = {}, redis.call('HMGET', KEYS[2], unpack(keys))
  for index = 1, #keys do
    if not raws[index] then gone[#gone + 1] = keys[index] end
  end
  if #gone > 0 then redis.call('ZREM', KEYS[3], unpack(gone)) end
end
return { 0, now, version, looked > 0 and looked == tonumber(ARGV[3]) and '(' .. keys[looked] or '-' }
