-- What "write" and "choose" write, collected and done by one command each: a command costs the server more than a field.
local MOST = 1000

local function call_with(command, key, list)
  local count = #list
  if count <= MOST then
    if count > 0 then redis.call(command, key, unpack(list)) end
    return
  end
  for from = 1, count, MOST do
    redis.call(command, key, unpack(list, from, math.min(from + MOST - 1, count)))
  end
end

-- Pairs of keys and records, keys without a record any more, pairs of 0 and keys that are new in the order, keys that
-- leave it; pairs of expiries and keys, and keys that expire no more.
-- A key that is not ours is met before anything is written: records and attempts were read, the expiries are looked at
-- if they are written, and the order is written first, or looked at. A server that is full refuses a script at its
-- first write that needs room, and never later: so that write comes first if there is one.
local function keep(set, gone, added, removed, expiring, lasting)
  if #expiring > 0 or #lasting > 0 then redis.call('ZCARD', KEYS[4]) end
  if #added > 0 then
    call_with('ZADD', KEYS[3], added)
  elseif #set > 0 and #removed > 0 then
    redis.call('ZCARD', KEYS[3])
  end
  if #set > 0 then keep_head() end
  call_with('ZREM', KEYS[3], removed)
  call_with('HDEL', KEYS[2], gone)
  call_with('HSET', KEYS[2], set)
  call_with('ZREM', KEYS[4], lasting)
  call_with('ZADD', KEYS[4], expiring)
  if #set == 0 then keep_head() end
end
