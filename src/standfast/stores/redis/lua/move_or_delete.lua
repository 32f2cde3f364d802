-- Move the first record below a prefix to a key, over the record that is there at a version; or else, as there is none,
-- delete that one and another.
-- ARGV, from 5: the key and its version, the other key and its version (16 digits), prefix, what inboxes begin with, the
-- sender, what channels begin with, how long inbox, key and value of a message may be.
local key, prefix = ARGV[5], ARGV[9]
local found = call('HMGET', KEYS[2], key, ARGV[7])
if not found[1] or sub(found[1], 1, 32) ~= ARGV[6] .. NEVER then return { 6, now, version } end
local first = call('ZRANGEBYLEX', KEYS[3], '[' .. prefix .. '\0', '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
if not first then
  if not found[2] or sub(found[2], 1, 32) ~= ARGV[8] .. NEVER then return { 6, now, version } end
  -- First, as in "keep": it needs no room. Both keys stay in the order, where they mean nothing without records: a mutex
  -- that is taken again finds them there. Others leave it by "create_or_append" or "tidy".
  call('HDEL', KEYS[2], key, ARGV[7])
  call('SET', KEYS[1], new_head)
  call('HSET', KEYS[4], ARGV[2], new_attempt .. '2' .. behind)
  return stamp .. drawn .. generation .. '1'
end
local raw = call('HGET', KEYS[2], first)
if not raw or sub(raw, 17, 32) ~= NEVER or #first <= #prefix + 18 then return { 6, now, version } end
local moved, inbox = stamp .. sub(raw, 33), ARGV[10] .. sub(first, #prefix + 19)
call('SET', KEYS[1], new_head)
call('ZREM', KEYS[3], first)
call('HDEL', KEYS[2], first)
call('HSET', KEYS[2], key, drawn .. NEVER .. moved)
call('HSET', KEYS[4], ARGV[2], new_attempt .. '1' .. behind)
local is_short = #inbox + #key + #moved <= tonumber(ARGV[13])
local message = '\1' .. ARGV[11] .. (is_short and drawn or '0000000000000000')
  .. format('%016.0f%016.0f', #inbox, #key) .. inbox .. key .. (is_short and moved or '')
redis.pcall('PUBLISH', ARGV[12] .. inbox, message) -- one that is not allowed undoes nothing
redis.pcall('PUBLISH', ARGV[12] .. ARGV[10], message)
return stamp .. drawn .. generation .. '0' .. format('%016.0f', #first) .. first .. raw
