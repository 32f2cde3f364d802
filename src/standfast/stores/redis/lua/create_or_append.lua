-- Create a record with a stamp and one without; or else, as the latter is there, append the former below a prefix.
-- ARGV, from 5: key and value with a stamp, key and value without, prefix, suffix; and two keys that "move_or_delete" has
-- left in the order, if there are any: now they leave it, unless they have records again.
local found = call('HMGET', KEYS[2], ARGV[7], ARGV[5])
local present = found[1]
if present and sub(present, 17, 32) ~= NEVER or not present and found[2] then return { 6, now, version } end
local stamped = drawn .. NEVER .. stamp .. ARGV[6]
if present then
  local key = ARGV[9] .. drawn .. '\0\1' .. ARGV[10]
  call('ZADD', KEYS[3], 0, key) -- first, as in "keep"
  call('SET', KEYS[1], new_head)
  call('HSET', KEYS[2], key, stamped)
  call('HSET', KEYS[4], ARGV[2], new_attempt .. '2' .. behind)
  return stamp .. drawn .. generation .. '1' .. present
end
call('ZADD', KEYS[3], 0, ARGV[5], 0, ARGV[7]) -- if they were left there, this writes nothing
call('SET', KEYS[1], new_head)
if ARGV[11] then
  local again = call('HMGET', KEYS[2], ARGV[11], ARGV[12])
  if not again[1] and not again[2] then call('ZREM', KEYS[3], ARGV[11], ARGV[12]) end
end
call('HSET', KEYS[2], ARGV[5], stamped, ARGV[7], drawn .. NEVER .. ARGV[8])
call('HSET', KEYS[4], ARGV[2], new_attempt .. '1' .. behind)
return stamp .. drawn .. generation .. '0'
