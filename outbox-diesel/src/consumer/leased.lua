-- Runs a command only while the lease is the holder's: what a holder sends late has no effect.
-- KEYS[1]: the lease. KEYS[2]: the stream. ARGV: holder, then the command.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
return redis.call(unpack(ARGV, 2))
