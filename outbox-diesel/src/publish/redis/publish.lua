-- Behind fence.lua: adds the events above their shard's position, in order, up to the first failure.
for n = 1, shards do
  if last[order[n]] == nil then
    -- Equal ticks with unlike marks: the database went back. Neither repeat nor new can be told.
    return { 0, '', 'ERR field ' .. asked[n] .. ' holds another mark of the same tick' }
  end
end

local moved, added = {}, false
for n = 1, count do
  local shard, seq, id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key,
    payload, headers, created_at
  shard, seq, id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key, payload,
    headers, created_at, at =
    struct.unpack('>I1I8c36I4c0I4c0I4c0I4c0I1c0I4c0I4c0I4c0I1c0', batch, at)
  if seq > last[shard] then
    local reply = add(id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key,
      payload, headers, created_at)
    if type(reply) == 'table' and reply.err then
      failed = reply.err
      break
    end
    last[shard], moved[shard], added = seq, true, true
  end
  done = n
end

store(moved)
if added then
  trim_stream()
end
return { done, failed, '' }
