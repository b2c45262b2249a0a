-- Moves a pending entry to the dead-letter stream. In one script, so that it is there once and the
-- entry is acknowledged only if it is: an XADD that fails (out of memory) fails the script first.
-- KEYS[1]: the stream. KEYS[2]: its dead letters. ARGV: group, entry id, then fields and values.
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
local added = { 'XADD', KEYS[2], '*' }
for n = 3, #ARGV do
  added[#added + 1] = ARGV[n]
end
redis.call(unpack(added))
return redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
