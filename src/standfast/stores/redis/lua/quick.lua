-- What the scripts begin with that make one choice of a mutex. They decide and write as "choose" does, without its loops
-- and functions, which take the server most of the time. Where something is otherwise than it mostly is, they write
-- nothing and answer 6: then "choose" is called. A namespace that was never written to, or is frozen, is such a case.
-- What was done is answered as one text, because for a table the server sets aside 16 kB: time, version, generation,
-- 16 digits each, which alternative it was, and what that says besides.
-- KEYS: head, records, order, attempts. ARGV: seen, handle, number, acknowledged.
local call, sub, format = redis.call, string.sub, string.format
local NEVER, STANDSTILL = '9999999999999999', 60000000

local head = call('GET', KEYS[1])
if not head or #head ~= 49 or string.find(head, '%D') ~= 49 or sub(head, 49) ~= '+' then return { 6, 0, 0 } end
local time = call('TIME')
local now, version = time[1] * 1000000 + time[2], tonumber(sub(head, 1, 16))
local last, generation = tonumber(sub(head, 17, 32)), sub(head, 33, 48)
if now < last and last - now < STANDSTILL then now = last end
if version < tonumber(ARGV[1]) then return { -1, now, version } end
local attempt = call('HGET', KEYS[4], ARGV[2])
local counted = attempt and tonumber(sub(attempt, 1, 16)) or 0
if counted >= tonumber(ARGV[3]) then return { 2, now, version } end
if counted < tonumber(ARGV[4]) then return { -1, now, version } end

-- What is written if anything is: the version, the head, and the attempt before and after the digit of the alternative,
-- as in "choose".
local drawn_version = math.max(version + 1, now)
local drawn, stamp = format('%016.0f', drawn_version), format('%016.0f', now)
local new_head = drawn .. stamp .. generation .. '+'
local new_attempt, behind = format('%016.0f', ARGV[3]) .. stamp, drawn ~= stamp and drawn or ''
