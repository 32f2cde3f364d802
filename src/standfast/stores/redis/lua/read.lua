-- Records. KEYS: head, records. ARGV: seen, the keys.
return { 0, now, version, fields(KEYS[2], 2, #ARGV) }
