-- Whether a namespace takes writes, and above which version it goes on. KEYS: head.
-- ARGV: seen, '+' for open, '!' for frozen or '' for as it is, and a version.
if ARGV[2] ~= '' then mark = ARGV[2] end
version = math.max(version, tonumber(ARGV[3]))
keep_head()
return { 0, now, version }
