-- What every script begins with. A namespace has a head: its last version, the time of the last write, and the
-- generation of its topics, 16 digits each; then '+' once it takes writes, '!' while it is frozen. KEYS[1] is the head,
-- ARGV[1] the last version that the caller has seen.
-- Numbers are doubles, exact below 2^53; they are stored by %.0f, because tostring keeps 14 digits only.
local STANDSTILL = 60000000

local function number(text, from)
  return tonumber(string.sub(text, from, from + 15))
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local version, generation, mark = 0, 0, ''
local head = redis.call('GET', KEYS[1])
if head then
  mark = string.sub(head, 49)
  if (string.find(head, '%D') or #head + 1) ~= 49 or (mark ~= '' and mark ~= '+' and mark ~= '!') then
    return redis.error_reply('STANDFAST ' .. KEYS[1] .. ' holds something else')
  end
  version, generation = number(head, 1), number(head, 33)
  -- A clock that was set back a little stands still until it has caught up, instead of turning time back.
  local last = number(head, 17)
  if now < last and last - now < STANDSTILL then now = last end
end
if version < tonumber(ARGV[1]) then return { -1, now, version } end

local function keep_head()
  redis.call('SET', KEYS[1], string.format('%016.0f%016.0f%016.0f', version, now, generation) .. mark)
end

-- A record is its version and its expiry, 16 digits each, and its value. Without an expiry there are sixteen nines.
local NEVER = '9999999999999999'

local function is_live(raw)
  return raw and number(raw, 17) > now
end

local function expires_some_time(raw)
  return raw and string.sub(raw, 17, 32) ~= NEVER
end

local function fields(key, first, last)
  if last - first < 1000 then
    if last < first then return {} end
    return redis.call('HMGET', key, unpack(ARGV, first, last))
  end
  local all = {}
  for from = first, last, 1000 do
    for _, raw in ipairs(redis.call('HMGET', key, unpack(ARGV, from, math.min(from + 999, last)))) do
      all[#all + 1] = raw
    end
  end
  return all
end
