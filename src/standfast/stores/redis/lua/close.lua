-- An attempt that shall never be written any more. KEYS: head, attempts.
-- ARGV: seen, handle, number, 1 if replicas will be waited for: they are, for what this connection has written; and
-- the last attempt of the handle that was acknowledged: counting on from fewer would hide that it is gone.
local attempt = redis.call('HGET', KEYS[2], ARGV[2])
local counted = attempt and number(attempt, 1) or 0
local wanted = tonumber(ARGV[3])
if counted < tonumber(ARGV[5]) then return { -1, now, version } end
if counted > wanted then return { 1, now, version } end
if counted < wanted then attempt = string.format('%016.0f%016.0f%016.0f%016.0f', wanted, now, 0, 0) end
if counted < wanted or ARGV[4] == '1' then redis.call('HSET', KEYS[2], ARGV[2], attempt) end
-- What follows is there if it was made of choices: a version and an alternative for each, see "choose". Of one choice it
-- is told in the same way.
if #attempt < 64 then
  local drawn = #attempt == 33 and string.sub(attempt, 17, 32) or string.sub(attempt, 34)
  return { 0, now, version, number(attempt, 17), 0, 0, drawn .. '000000000000000' .. string.sub(attempt, 33, 33) }
end
return { 0, now, version, number(attempt, 17), number(attempt, 33), number(attempt, 49), string.sub(attempt, 65) }
