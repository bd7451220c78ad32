-- {worker, names, items}: applies what a worker says of its deliveries, in order. An item is
-- {id, token, result, started_ago, result is elsewhere} for a plain success, else what settle.lua says; false for what is not given.
-- Here the plain successes of plain jobs; the rest of the script is built for the others only.
local worker, names, items = A[1], A[2], A[3]
local results, rest, is_rest, steps = {}, {}, {}, {}

local function settle_plain()
  local batches, ends, done, ids = {}, {}, {}, {}
  for i, item in ipairs(items) do
    local id, token, started_ago = item[1], item[2], item[4]
    local key = B .. 'j:' .. id
    local f = #item <= 5 and not is_rest[id] and call('HMGET', key, 'v', 'wt', 'su', 'ru')
    local v = f and f[1]
    if v and sub(v, 1, 25) == 'l' .. token then
      local where, ttl = sub(v, 90), sub(v, 26, 41)
      local at = ends[ttl]
      if not at then
        at = {int(now + ttl), int((now + ttl) / 1000)}
        ends[ttl] = at
      end
      batches[where] = (batches[where] or 0) + 1
      local sa = started_ago and wide(now - started_ago) or sub(v, 42, 57)
      v = 'e' .. sub(v, 2, 41) .. sa .. now_text .. sub(v, 74)
      if item[3] then put('HSET', key, 'v', v, 'rs', item[3]) else put('HSET', key, 'v', v) end
      if item[5] then put('HSET', key, 'rx', '1') end
      if f[3] or f[4] then
        -- How long it stays is up to its run.
        steps[#steps + 1] = {id, ttl, f[3], f[4]}
      else
        put('PEXPIREAT', key, at[2])
        done[#done + 1] = at[1]
        done[#done + 1] = id
      end
      if f[2] then
        for name in string.gmatch(f[2], '%S+') do
          put('RPUSH', B .. 'wj:' .. name, id)
          put('PEXPIRE', B .. 'wj:' .. name, 60000)
        end
        put('HDEL', key, 'wt')
      end
      ids[#ids + 1] = id
      results[i] = 'ok'
    else
      rest[#rest + 1] = i
      is_rest[id] = true
    end
  end
  many('ZADD', B .. 'done', done)
  many('ZREM', B .. 'le', ids)
  for where, n in pairs(batches) do
    local counters = B .. 'n:' .. sub(where, 8, 7 + sub(where, 3, 7))
    local field = 'l' .. int(9 - sub(where, 1, 2))
    if call('HINCRBY', counters, field, -n) <= 0 then put('HDEL', counters, field) end
  end
end

if prefetch then soon(items, first_of) end
settle_plain()
if #rest == 0 and #steps == 0 then return {#items, news(worker, names)} end
