-- Behind fence.lua: adds parked events that were not yet added, whatever the position.
-- KEYS[2 + n]: the n-th event's own key, there once it was added. ARGV[2]: its life in seconds.
local added = false
for n = 1, count do
  local _, id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key, payload,
    headers, created_at
  _, _, id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key, payload, headers,
    created_at, at = struct.unpack('>I1I8c36I4c0I4c0I4c0I4c0I1c0I4c0I4c0I4c0I1c0', batch, at)
  if redis.call('EXISTS', KEYS[2 + n]) == 0 then
    local reply = add(id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key,
      payload, headers, created_at)
    if type(reply) == 'table' and reply.err then
      failed = reply.err
      break
    end
    redis.call('SET', KEYS[2 + n], reply, 'EX', ARGV[2])
    added = true
  end
  done = n
end

store({})
if added then
  trim_stream()
end
return { done, failed, '' }
