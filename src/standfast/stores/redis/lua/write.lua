-- One intent: everything is looked at before the first write, because a script cannot be undone.
-- KEYS: head, records, order, expiries, attempts.
-- ARGV: seen, handle, number, acknowledged, draws, first exact version (0: none), last version that must still be
-- the last (0: any), after, before (-1: none), how many guards, puts, deletes and messages follow, and above which
-- version a namespace begins (-1: not known yet, the whole store may be frozen).
local handle, attempt_number, draws = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local exact, still, after, before = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local guards, puts, deletes = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local floor, first_guard = tonumber(ARGV[14]), 15
local first_version = first_guard + guards
local first_put = first_version + guards
local first_delete = first_put + 4 * puts
local first_message = first_delete + deletes

local attempt = redis.call('HGET', KEYS[5], handle)
local counted = attempt and number(attempt, 1) or 0
if counted >= attempt_number then return { 2, now, version } end
if counted < tonumber(ARGV[4]) then return { -1, now, version } end

if mark == '!' then return { 4, now, version } end

local raws = fields(KEYS[2], first_guard, first_version - 1)
local lost = {}
for index = 1, guards do
  local raw = raws[index]
  local live = is_live(raw)
  local present = live and string.sub(raw, 1, 16) or '0000000000000000'
  if present ~= ARGV[first_version + index - 1] then
    lost[#lost + 1] = index - 1
    lost[#lost + 1] = live and raw
  end
end
if #lost > 0 or now < after or (before >= 0 and now >= before) then return { 1, now, version, lost } end
if mark == '' then
  if floor < 0 then
    redis.call('ZCARD', KEYS[3]) -- a key that is not ours is met here, with nothing written
    redis.call('ZCARD', KEYS[4])
    keep_head() -- before the caller looks whether the whole store is frozen: whoever freezes it finds this namespace
    return { 5, now, version }
  end
  if exact > 0 and exact <= floor then return { 3, now, version } end
  mark, version = '+', math.max(version, floor)
end
if still > 0 and version ~= still then return { 3, now, version } end

local top = math.max(version + 1, now)
local first = exact > 0 and exact or top
version = exact > 0 and top or top + math.max(draws, 1) - 1

local set, gone, added, removed, expiring, lasting = {}, {}, {}, {}, {}, {}
for position = first_delete, first_message - 1 do
  local index = tonumber(ARGV[position])
  local key = ARGV[first_guard + index]
  gone[#gone + 1] = key
  removed[#removed + 1] = key
  if expires_some_time(raws[index + 1]) then lasting[#lasting + 1] = key end
end
for position = first_put, first_delete - 1, 4 do
  local index, expires = tonumber(ARGV[position]), ARGV[position + 2]
  local key, raw = ARGV[first_guard + index], raws[index + 1]
  set[#set + 1] = key
  set[#set + 1] = string.format('%016.0f', first + tonumber(ARGV[position + 1])) .. expires .. ARGV[position + 3]
  if not raw then
    added[#added + 1] = 0
    added[#added + 1] = key
  end
  if expires ~= NEVER then
    expiring[#expiring + 1] = expires
    expiring[#expiring + 1] = key
  elseif expires_some_time(raw) then
    lasting[#lasting + 1] = key
  end
end
keep(set, gone, added, removed, expiring, lasting)
redis.call('HSET', KEYS[5], handle, string.format('%016.0f%016.0f%016.0f%016.0f', attempt_number, now, first, draws))
for position = first_message, #ARGV, 2 do
  redis.pcall('PUBLISH', ARGV[position], ARGV[position + 1]) -- a hint that is not allowed undoes nothing
end
return string.format('%016.0f%016.0f%016.0f%016.0f', now, version, generation, first) -- a text, as in "quick"
