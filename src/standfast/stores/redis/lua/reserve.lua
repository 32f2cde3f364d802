-- Versions to be used later. KEYS: head. ARGV: seen, how many.
local first = math.max(version + 1, now)
version = first + tonumber(ARGV[2]) - 1
keep_head()
return { 0, now, version, first }
