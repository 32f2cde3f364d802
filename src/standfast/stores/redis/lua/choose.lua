-- Choices, one after the other: of the alternatives of each, the first whose guards hold is done.
-- KEYS: head, records, order, expiries, attempts.
-- ARGV: seen, handle, number, acknowledged, above which version a namespace begins (-1: not known yet), the sender, what
-- channels begin with, how long inbox, key and value of a message may be. Then each choice: how many alternatives, and each
-- of them: how many changes and messages, after, before (-1: none), six fields a change, and two a message.
-- A change: what it is, key, expected version (16 digits), value, expiry, and one field more.
-- p put, s put with a stamp, d delete, c compare; r there is a record, e there is none below the key;
-- a append below the key, and A with a stamp, the field is the suffix;
-- m move the first below the field to the key, the value is what inboxes begin with.
local handle, attempt_number, floor = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local NUMBER = 18

local attempt = redis.call('HGET', KEYS[5], handle)
local counted = attempt and number(attempt, 1) or 0
if counted >= attempt_number then return { 2, now, version } end
if counted < tonumber(ARGV[4]) then return { -1, now, version } end
if mark == '!' then return { 4, now, version } end
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3]) -- a key that is not ours is met here, with nothing written
redis.call('ZCARD', KEYS[4])

local seen = {}
local function get(key)
  local raw = seen[key]
  if raw == nil then
    raw = redis.call('HGET', KEYS[2], key)
    seen[key] = raw
  end
  return is_live(raw) and raw
end

local firsts = {}
local function first(prefix)
  local found = firsts[prefix]
  if found then return found[1], found[2] end
  local from, to = '[' .. prefix .. '\0', '(' .. prefix .. '\255'
  while true do
    local keys = redis.call('ZRANGEBYLEX', KEYS[3], from, to, 'LIMIT', 0, 10)
    for _, key in ipairs(keys) do
      local raw = get(key)
      if raw then
        firsts[prefix] = { key, raw }
        return key, raw
      end
      from = '(' .. key
    end
    if #keys < 10 then
      firsts[prefix] = { false, false }
      return false, false
    end
  end
end

local function is_at(key, expected)
  local raw = get(key)
  return (raw and string.sub(raw, 1, 16) or '0000000000000000') == expected
end

local WRITES = { p = true, s = true, d = true, a = true, A = true, m = true }

local function holds(start, changes, after, before)
  if now < after or (before >= 0 and now >= before) then return false, false end
  local writes = false
  for position = start, start + 6 * (changes - 1), 6 do
    local kind, key = ARGV[position], ARGV[position + 1]
    writes = writes or WRITES[kind]
    if kind == 'r' then
      if not get(key) then return false end
    elseif kind == 'e' then
      if first(key) then return false end
    elseif kind ~= 'a' and kind ~= 'A' then
      if not is_at(key, ARGV[position + 2]) then return false end
      if kind == 'm' then
        local prefix = ARGV[position + 5]
        local found = first(prefix)
        if not found or #found <= #prefix + NUMBER then return false end
      end
    end
  end
  return true, writes
end

-- Where the alternative begins that is to be done, and which it is; nil if none holds, and then where the choice ends.
local function find(position, alternatives)
  for index = 1, alternatives do
    local changes, messages = tonumber(ARGV[position]), tonumber(ARGV[position + 1])
    local is_held, writes = holds(position + 4, changes, tonumber(ARGV[position + 2]), tonumber(ARGV[position + 3]))
    if is_held then return position, index, writes end
    position = position + 4 + 6 * changes + 2 * messages
  end
end

local function after(position, alternatives)
  for _ = 1, alternatives do
    position = position + 4 + 6 * tonumber(ARGV[position]) + 2 * tonumber(ARGV[position + 1])
  end
  return position
end

-- What is there at all keys of a choice, and first below its prefixes.
local function shown(position, alternatives)
  local keys, below = {}, {}
  for _ = 1, alternatives do
    local changes, messages = tonumber(ARGV[position]), tonumber(ARGV[position + 1])
    for at = position + 4, position + 4 + 6 * (changes - 1), 6 do
      local kind, key = ARGV[at], ARGV[at + 1]
      local prefix = kind == 'e' and key or kind == 'm' and ARGV[at + 5]
      if kind ~= 'e' and kind ~= 'a' and kind ~= 'A' then
        keys[#keys + 1] = key
        keys[#keys + 1] = get(key)
      end
      if prefix then
        local found, raw = first(prefix)
        below[#below + 1] = prefix
        below[#below + 1] = found
        below[#below + 1] = raw
      end
    end
    position = position + 4 + 6 * changes + 2 * messages
  end
  return { -1, keys, below }
end

local drawn, is_begun
local stamp = string.format('%016.0f', now)

local function put(key, value, expires)
  get(key)
  local raw = seen[key] -- as it is stored: an expired one is written over
  seen[key] = drawn .. expires .. value
  redis.call('HSET', KEYS[2], key, seen[key])
  if not raw then redis.call('ZADD', KEYS[3], 0, key) end
  if expires ~= NEVER then
    redis.call('ZADD', KEYS[4], expires, key)
  elseif expires_some_time(raw) then
    redis.call('ZREM', KEYS[4], key)
  end
end

local function delete(key)
  get(key)
  local raw = seen[key]
  seen[key] = false
  redis.call('HDEL', KEYS[2], key)
  redis.call('ZREM', KEYS[3], key)
  if expires_some_time(raw) then redis.call('ZREM', KEYS[4], key) end
end

local function perform(position, index)
  local start, changes, messages = position + 4, tonumber(ARGV[position]), tonumber(ARGV[position + 1])
  local last = start + 6 * (changes - 1)
  local present, moved_from, moved_raw = {}, false, false
  for at = start, last, 6 do
    if ARGV[at] == 'r' then
      present[#present + 1] = ARGV[at + 1]
      present[#present + 1] = get(ARGV[at + 1])
    end
  end
  for at = start, last, 6 do
    if ARGV[at] == 'm' then moved_from, moved_raw = first(ARGV[at + 5]) end
  end
  for at = start, last, 6 do
    local kind, key, value, expires = ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
    if kind == 'p' then
      put(key, value, expires)
    elseif kind == 's' then
      put(key, stamp .. value, expires)
    elseif kind == 'd' then
      delete(key)
    elseif kind == 'a' or kind == 'A' then
      put(key .. drawn .. '\0\1' .. ARGV[at + 5], (kind == 'A' and stamp or '') .. value, NEVER)
    elseif kind == 'm' then
      delete(moved_from)
      local moved = stamp .. string.sub(moved_raw, 33)
      put(key, moved, NEVER)
      local inbox = value .. string.sub(moved_from, #ARGV[at + 5] + NUMBER + 1)
      local is_short = #inbox + #key + #moved <= tonumber(ARGV[8])
      local message = '\1' .. ARGV[6] .. (is_short and drawn or '0000000000000000')
        .. string.format('%016.0f%016.0f', #inbox, #key) .. inbox .. key .. (is_short and moved or '')
      redis.pcall('PUBLISH', ARGV[7] .. inbox, message) -- one that is not allowed undoes nothing
      redis.pcall('PUBLISH', ARGV[7] .. value, message)
    end
  end
  for at = last + 6, last + 4 + 2 * messages, 2 do
    redis.pcall('PUBLISH', ARGV[at], ARGV[at + 1])
  end
  firsts = {}
  return { index - 1, version, present, moved_from, moved_raw }
end

local function looked(position, index)
  local present = {}
  for at = position + 4, position + 4 + 6 * (tonumber(ARGV[position]) - 1), 6 do
    if ARGV[at] == 'r' then
      present[#present + 1] = ARGV[at + 1]
      present[#present + 1] = get(ARGV[at + 1])
    end
  end
  return { index - 1, 0, present, false, false }
end

local answers, noted = {}, {}
local position = 9
while position <= #ARGV do
  local alternatives = tonumber(ARGV[position])
  local place, index, writes = find(position + 1, alternatives)
  if not place then
    answers[#answers + 1] = shown(position + 1, alternatives)
  elseif not writes then
    answers[#answers + 1] = looked(place, index)
  else
    if mark == '' then
      if floor < 0 then
        keep_head() -- as in "write"
        return { 5, now, version }
      end
      mark, version = '+', math.max(version, floor)
    end
    version = math.max(version + 1, now)
    drawn = string.format('%016.0f', version)
    -- A server that is full refuses a script at its first write that needs room, and never later.
    if not is_begun then keep_head() end
    is_begun = true
    answers[#answers + 1] = perform(place, index)
  end
  noted[#noted + 1] = place and writes and drawn .. string.format('%016.0f', index) or string.rep('0', 32)
  position = after(position + 1, alternatives)
end
if is_begun then
  keep_head()
  redis.call(
    'HSET', KEYS[5], handle,
    string.format('%016.0f%016.0f%016.0f%016.0f', attempt_number, now, version, 0) .. table.concat(noted)
  )
end
return { 0, now, version, generation, answers }
