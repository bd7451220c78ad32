-- {what, id, info, interval}: the registry; who does the fleet's maintenance is elected by the heartbeats.
local what, id = A[1], A[2]
if what == 'list' then
  local found = {}
  local flat = call('ZRANGE', B .. 'ws', 0, -1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    local f = call('HMGET', B .. 'wk:' .. flat[i], 'i', 'v')
    if f[1] then found[#found + 1] = {f[1], flat[i + 1]} end
  end
  return {now_text, found}
end
if what == 'deregister' then
  put('ZREM', B .. 'ws', id)
  put('DEL', B .. 'wk:' .. id, B .. 'tw:' .. id)
  put('ZREM', B .. 'liver', '\0c' .. id)
  if call('GET', B .. 'mt') == id then put('DEL', B .. 'mt') end
  return 1
end
put('HSET', B .. 'wk:' .. id, 'i', A[3], 'v', tostring(A[4]))
put('ZADD', B .. 'ws', now_text, id)
local elected = call('GET', B .. 'mt')
if elected and elected ~= id then
  local seen = call('ZSCORE', B .. 'ws', elected)
  local interval = tonumber(call('HGET', B .. 'wk:' .. elected, 'v') or 0)
  if not seen or now - tonumber(seen) > 2 * interval then elected = nil end
end
if not elected then
  elected = id
  put('SET', B .. 'mt', id)
end
return {now_text, elected == id and 1 or 0}
