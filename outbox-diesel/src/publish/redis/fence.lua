-- Shared by publish.lua and retry.lua: opens the batch and checks each shard's fence.
-- KEYS[1]: the stream. KEYS[2]: its fence, one field per source, subscription and shard with
-- "epoch:generation:tick:mark:seq", or only the epoch before the first event.
-- ARGV[1]: the batch as pack.rs writes it. Its numbers are below 2^53, so that doubles hold them.
-- Answers { events done, error of the event after them or '', error of the fence or '', fenced
-- shards... }.
local batch = ARGV[1]
local generation, tick, mark, trim, keep, prefix, shards, at =
  struct.unpack('>I8I8I8I1I8I2c0I1', batch)

local order, epochs, asked = {}, {}, {}
for n = 1, shards do
  local shard, epoch
  shard, epoch, at = struct.unpack('>I1I8', batch, at)
  order[n], epochs[n], asked[n] = shard, epoch, prefix .. shard
end
local count
count, at = struct.unpack('>I4', batch, at)

local stored = redis.pcall('HMGET', KEYS[2], unpack(asked))
if stored.err then
  return { 0, '', stored.err }
end

local refused = { 0, '', '' }
-- Per shard: what is to be written back, and the seq at or below which an event is a repeat.
local kept, last = {}, {}
for n = 1, shards do
  local shard = order[n]
  last[shard] = -1
  if stored[n] then
    local e, g, t, m, s = string.match(stored[n], '^(%d+):(%d+):(%d+):(%d+):(%d+)$')
    e = e or string.match(stored[n], '^(%d+)$')
    e, g, t, m, s = tonumber(e), tonumber(g), tonumber(t), tonumber(m), tonumber(s)
    if not e then
      return { 0, '', 'ERR field ' .. asked[n] .. ' is malformed' }
    end
    if e > epochs[n] or (g and g > generation) then
      refused[#refused + 1] = shard
    elseif g then
      kept[n] = string.format(':%.0f:%.0f:%.0f:%.0f', g, t, m, s)
      if g == generation and t > tick then
        last[shard] = math.huge
      elseif g == generation and t == tick then
        if m ~= mark then
          last[shard] = nil
        else
          last[shard] = s
        end
      end
    end
    if e == epochs[n] then
      stored[n] = true
    end
  end
end
if #refused > 3 then
  return refused
end

local done, failed = 0, ''

local function add(id, topic, aggregate_type, aggregate_id, event_type, version, dedup_key,
                   payload, headers, created_at)
  return redis.pcall('XADD', KEYS[1], '*', 'event_id', id, 'topic', topic,
    'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id, 'event_type', event_type,
    'event_version', version, 'dedup_key', dedup_key, 'payload', payload, 'headers', headers,
    'created_at', created_at)
end

-- Only fields that change are written: the epoch was, at first contact.
local function store(moved)
  local writes = {}
  for n = 1, shards do
    local position = kept[n] or ''
    if moved[order[n]] then
      position = string.format(':%.0f:%.0f:%.0f:%.0f', generation, tick, mark, last[order[n]])
    end
    if moved[order[n]] or stored[n] ~= true then
      writes[#writes + 1] = asked[n]
      -- '%.0f' everywhere: `..` would write 14 digits of a number and lose events.
      writes[#writes + 1] = string.format('%.0f', epochs[n]) .. position
    end
  end
  if #writes > 0 then
    redis.call('HSET', KEYS[2], unpack(writes))
  end
end

local function trim_stream()
  if trim == 1 then
    redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', string.format('%.0f', keep))
  elseif trim == 2 then
    local now = redis.call('TIME')
    local oldest = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - keep)
    redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', oldest))
  end
end
