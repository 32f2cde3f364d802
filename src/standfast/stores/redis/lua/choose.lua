-- Choices, one after the other: of the alternatives of each, the first whose guards hold is done.
-- KEYS: head, records, order, expiries, attempts.
-- ARGV: seen, handle, number, acknowledged, above which version a namespace begins (-1: not known yet), the sender, what
-- channels begin with, how long inbox, key and value of a message may be. Then each choice: how many alternatives, and each
-- of them: how many changes and messages, after, before (-1: none), six fields a change, and two a message.
-- A change: what it is, key, expected version (16 digits), value, expiry, and one field more.
-- p put, s put with a stamp, d delete, c compare; r there is a record, e there is none below the key;
-- n there are as many below the key as the version says, or more, but no more than the value says, if that says something;
-- a append below the key, and A with a stamp, the field is the suffix;
-- m move the first below the field to the key, the value is what inboxes begin with.
-- The answer is one flat list, because for each table in it the server sets aside 16 kB. Of each choice: which alternative
-- it was, from 0, the version, and in a list after its length the records that are present; then what was moved. Or -1
-- and two such lists: what is there at the keys, and first below the prefixes.
local handle, attempt_number, floor = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local NUMBER = 18
local OF_PREFIXES = { e = true, n = true, a = true, A = true }

local answers = { 0, now, version, generation }
local function tell(list)
  answers[#answers + 1] = #list
  for index = 1, #list do answers[#answers + 1] = list[index] end
end

local attempt = redis.call('HGET', KEYS[5], handle)
local counted = attempt and number(attempt, 1) or 0
if counted >= attempt_number then return { 2, now, version } end
if counted < tonumber(ARGV[4]) then return { -1, now, version } end
if mark == '!' then return { 4, now, version } end
-- The records of all keys that are named are read at once. What is done is kept in mind, and written at the end.
local stop, starts, named, seen = #ARGV, {}, {}, {}
local position = 9
while position <= stop do
  starts[#starts + 1] = position
  local alternatives = tonumber(ARGV[position])
  position = position + 1
  for _ = 1, alternatives do
    local last = position + 6 * tonumber(ARGV[position]) - 2
    for at = position + 4, last, 6 do
      local kind, key = ARGV[at], ARGV[at + 1]
      if not OF_PREFIXES[kind] and seen[key] == nil then
        seen[key] = false
        named[#named + 1] = key
      end
    end
    position = last + 6 + 2 * tonumber(ARGV[position + 1])
  end
end
for from = 1, #named, MOST do
  local raws = redis.call('HMGET', KEYS[2], unpack(named, from, math.min(from + MOST - 1, #named)))
  for index = 1, #raws do seen[named[from + index - 1]] = raws[index] end
end

local function get(key)
  local raw = seen[key]
  if raw == nil then
    raw = redis.call('HGET', KEYS[2], key)
    seen[key] = raw
  end
  return is_live(raw) and raw
end

-- Keys that were changed, in their order, and what is stored of them until the end; keys that are new since the order
-- was last brought up to date, and those that were put there before the end.
local changed, stored, new, ordered = {}, {}, {}, {}

local function change(key, raw)
  get(key)
  if stored[key] == nil then -- an expired one is written over
    stored[key] = seen[key]
    changed[#changed + 1] = key
  end
  if raw and not stored[key] and not ordered[key] then new[#new + 1] = key end
  seen[key] = raw
end

local function bring_order_up_to_date()
  local added = {}
  for _, key in ipairs(new) do
    if seen[key] and not ordered[key] then
      ordered[key] = true
      added[#added + 1] = 0
      added[#added + 1] = key
    end
  end
  new = {}
  if #added > 0 then
    redis.call('ZCARD', KEYS[4]) -- as in "keep"
    call_with('ZADD', KEYS[3], added)
  end
end

local firsts = {}
local function first(prefix)
  local found = firsts[prefix]
  if found then return found[1], found[2] end
  if #new > 0 then bring_order_up_to_date() end
  local from, to, most = '[' .. prefix .. '\0', '(' .. prefix .. '\255', 1
  while true do
    local keys = redis.call('ZRANGEBYLEX', KEYS[3], from, to, 'LIMIT', 0, most)
    for _, key in ipairs(keys) do
      local raw = get(key)
      if raw then
        firsts[prefix] = { key, raw }
        return key, raw
      end
      from = '(' .. key
    end
    if #keys < most then
      firsts[prefix] = { false, false }
      return false, false
    end
    most = 10
  end
end

-- Up to so many live keys below a prefix, and their records. A key in the order means nothing without its record.
local function all_below(prefix, most)
  local found, raws, from, to = {}, {}, '[' .. prefix .. '\0', '(' .. prefix .. '\255'
  if #new > 0 then bring_order_up_to_date() end
  while #found < most do
    local keys = redis.call('ZRANGEBYLEX', KEYS[3], from, to, 'LIMIT', 0, most)
    local unread = {}
    for _, key in ipairs(keys) do
      if seen[key] == nil then unread[#unread + 1] = key end
    end
    if #unread > 0 then
      local read = redis.call('HMGET', KEYS[2], unpack(unread))
      for index = 1, #unread do seen[unread[index]] = read[index] end
    end
    for _, key in ipairs(keys) do
      if is_live(seen[key]) and #found < most then
        found[#found + 1], raws[#raws + 1] = key, seen[key]
      end
      from = '(' .. key
    end
    if #keys < most then break end
  end
  return found, raws
end

-- The bounds of a count, and how many keys show if it holds.
local function bounds(at)
  local least, most = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  return least, most, math.max(least, most and most + 1 or 0)
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
    elseif kind == 'n' then
      local least, most, enough = bounds(position)
      local found = #all_below(key, enough)
      if found < least or most and found > most then return false end
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

-- What is there at all keys of a choice, and first below its prefixes.
local function tell_shown(position, alternatives)
  local keys, below = {}, {}
  for _ = 1, alternatives do
    local changes, messages = tonumber(ARGV[position]), tonumber(ARGV[position + 1])
    for at = position + 4, position + 4 + 6 * (changes - 1), 6 do
      local kind, key = ARGV[at], ARGV[at + 1]
      local prefix = kind == 'e' and key or kind == 'm' and ARGV[at + 5]
      if not OF_PREFIXES[kind] then
        keys[#keys + 1] = key
        keys[#keys + 1] = get(key)
      elseif kind == 'n' then
        local _, _, enough = bounds(at)
        local found, raws = all_below(key, enough)
        for index = 1, #found do
          keys[#keys + 1] = found[index]
          keys[#keys + 1] = raws[index]
        end
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
  answers[#answers + 1] = -1
  tell(keys)
  tell(below)
end

local drawn, is_begun
local stamp = string.format('%016.0f', now)
local published = {}

local function tell_done(index, at_version, present, moved_from, moved_raw)
  answers[#answers + 1] = index - 1
  answers[#answers + 1] = at_version
  tell(present)
  answers[#answers + 1] = moved_from
  answers[#answers + 1] = moved_raw
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
      change(key, drawn .. expires .. value)
    elseif kind == 's' then
      change(key, drawn .. expires .. stamp .. value)
    elseif kind == 'd' then
      change(key, false)
    elseif kind == 'a' or kind == 'A' then
      change(key .. drawn .. '\0\1' .. ARGV[at + 5], drawn .. NEVER .. (kind == 'A' and stamp or '') .. value)
    elseif kind == 'm' then
      change(moved_from, false)
      local moved = stamp .. string.sub(moved_raw, 33)
      change(key, drawn .. NEVER .. moved)
      local inbox = value .. string.sub(moved_from, #ARGV[at + 5] + NUMBER + 1)
      local is_short = #inbox + #key + #moved <= tonumber(ARGV[8])
      local message = '\1' .. ARGV[6] .. (is_short and drawn or '0000000000000000')
        .. string.format('%016.0f%016.0f', #inbox, #key) .. inbox .. key .. (is_short and moved or '')
      published[#published + 1] = { ARGV[7] .. inbox, message }
      published[#published + 1] = { ARGV[7] .. value, message }
    end
  end
  for at = last + 6, last + 4 + 2 * messages, 2 do
    published[#published + 1] = { ARGV[at], ARGV[at + 1] }
  end
  firsts = {}
  tell_done(index, version, present, moved_from, moved_raw)
end

local function looked(position, index)
  local present = {}
  for at = position + 4, position + 4 + 6 * (tonumber(ARGV[position]) - 1), 6 do
    if ARGV[at] == 'r' then
      present[#present + 1] = ARGV[at + 1]
      present[#present + 1] = get(ARGV[at + 1])
    end
  end
  tell_done(index, 0, present, false, false)
end

local function keep_changes()
  local set, gone, added, removed, expiring, lasting = {}, {}, {}, {}, {}, {}
  for _, key in ipairs(changed) do
    local before, raw = stored[key], seen[key]
    local is_in_order = before or ordered[key]
    if raw then
      set[#set + 1] = key
      set[#set + 1] = raw
      if not is_in_order then
        added[#added + 1] = 0
        added[#added + 1] = key
      end
    else
      if before then gone[#gone + 1] = key end
      if is_in_order then removed[#removed + 1] = key end
    end
    if expires_some_time(raw) then
      expiring[#expiring + 1] = string.sub(raw, 17, 32)
      expiring[#expiring + 1] = key
    elseif expires_some_time(before) then
      lasting[#lasting + 1] = key
    end
  end
  keep(set, gone, added, removed, expiring, lasting)
end

local noted = {}
for _, start in ipairs(starts) do
  local alternatives = tonumber(ARGV[start])
  local place, index, writes = find(start + 1, alternatives)
  if not place then
    tell_shown(start + 1, alternatives)
  elseif not writes then
    looked(place, index)
  else
    if mark == '' then
      if floor < 0 then
        redis.call('ZCARD', KEYS[3]) -- as in "write"
        redis.call('ZCARD', KEYS[4])
        keep_head()
        return { 5, now, version }
      end
      mark, version = '+', math.max(version, floor)
    end
    version = math.max(version + 1, now)
    drawn = string.format('%016.0f', version)
    is_begun = true
    perform(place, index)
  end
  noted[#noted + 1] = place and writes and drawn .. string.format('%016.0f', index) or string.rep('0', 32)
end
-- An attempt of one choice is number, time, a digit for the alternative, and the version if that is not the time, as
-- "quick" has it. One of several is number, time, version and 0, and then a version and an alternative for each.
local function kept_attempt()
  local begin = string.format('%016.0f', attempt_number) .. stamp
  if #noted == 1 and string.sub(noted[1], 17, 31) == '000000000000000' then
    return begin .. string.sub(noted[1], 32) .. (drawn ~= stamp and drawn or '')
  end
  return begin .. string.format('%016.0f%016.0f', version, 0) .. table.concat(noted)
end

if is_begun then
  keep_changes()
  redis.call('HSET', KEYS[5], handle, kept_attempt())
  for _, message in ipairs(published) do
    redis.pcall('PUBLISH', message[1], message[2]) -- one that is not allowed undoes nothing
  end
end
answers[3] = version
return answers
