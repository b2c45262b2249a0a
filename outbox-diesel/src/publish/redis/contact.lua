-- First contact: writes each shard's epoch, keeps its position, answers what was stored.
-- KEYS[1]: the fence. ARGV[1]: the fields' prefix, then shard and epoch by turns.
local asked = {}
for n = 2, #ARGV, 2 do
  asked[#asked + 1] = ARGV[1] .. ARGV[n]
end
local stored = redis.call('HMGET', KEYS[1], unpack(asked))
local writes = {}
for n = 1, #asked do
  local epoch = ARGV[2 * n + 1]
  if not stored[n] then
    writes[#writes + 1] = asked[n]
    writes[#writes + 1] = epoch
  else
    local digits, position = string.match(stored[n], '^(%d+)(:%d+:%d+:%d+:%d+)$')
    if not digits then
      digits, position = string.match(stored[n], '^(%d+)$'), ''
    end
    -- A malformed field is the caller's to refuse: nothing of it is changed.
    if digits and tonumber(digits) <= tonumber(epoch) then
      writes[#writes + 1] = asked[n]
      -- Text, not numbers: Lua's `..` would write 14 digits of a number.
      writes[#writes + 1] = epoch .. position
    end
  end
end
if #writes > 0 then
  redis.call('HSET', KEYS[1], unpack(writes))
end
return stored
