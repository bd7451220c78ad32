-- {worker, names, items}: prolongs leases; an item is {id, token, lease, started_ago or false}.
local worker, names, items = A[1], A[2], A[3]
local lost, cancelled, expired, moved = {}, {}, {}, {}

local function prolong(item)
  local id, token, receipt = item[1], item[2], item[2] .. '-' .. item[1]
  local key = B .. 'j:' .. id
  local f = call('HMGET', key, 'v', 'w', 'r', 'lt', 'cr', 'ex', 'sa')
  local v = f[1]
  local is_plain = v and sub(v, 1, 25) == 'l' .. token
  if not is_plain and (f[3] ~= token or not (f[2] == 'l' or f[4])) then
    lost[#lost + 1] = receipt
    return
  end
  if is_plain or f[2] == 'l' then
    moved[#moved + 1] = int(now + item[3])
    moved[#moved + 1] = id
  else
    local E = endings()
    local rec = E.load(id)
    E.take_out(rec)
    E.retake_slot(rec)
    E.put_leased(rec, worker, item[3])
    E.save()
    if f[5] then tell_cancelled(worker, receipt, f[5]) end
  end
  if item[4] then
    f[7] = wide(now - item[4])
    if is_plain then
      put('HSET', key, 'v', sub(v, 1, 41) .. f[7] .. sub(v, 58))
    else
      put('HSET', key, 'sa', f[7])
    end
  end
  if f[5] then cancelled[#cancelled + 1] = receipt end
  if f[6] and tonumber(f[6]) <= now and not f[7] then expired[#expired + 1] = receipt end
end

if prefetch then soon(items, first_of) end
for _, item in ipairs(items) do prolong(item) end
many('ZADD', B .. 'le', moved)
flush()
return {lost, cancelled, expired, news(worker, names)}
