-- {queue, limit}: ends jobs of a queue that nobody holds; {removed, more}.
local E = endings()
local q, limit = A[1], A[2]
local removed = 0

local function next_ids(size)
  for _, kind in ipairs({'r:', 'l:', 'd:'}) do
    local ids = call('ZRANGE', B .. kind .. q, 0, size - 1)
    if #ids > 0 then return ids, kind end
  end
  for _, kind in ipairs({'bl:', 'xt:'}) do
    local ids = call('SMEMBERS', B .. kind .. q)
    if #ids > 0 then return ids, kind end
  end
  return {}
end

while removed < limit do
  local ids, kind = next_ids(limit - removed)
  if #ids == 0 then break end
  if prefetch then soon(ids, itself) end
  for i = 1, math.min(#ids, limit - removed) do
    local rec = E.load(ids[i])
    if rec and rec.f.q == q and rec.f.w ~= 'e' and rec.f.w ~= 'l' then
      E.end_job(rec, 'REVOKED', {error = E.error_of('purged')})
      removed = removed + 1
    else
      put((kind == 'bl:' or kind == 'xt:') and 'SREM' or 'ZREM', B .. kind .. q, ids[i])
      touch('r', q)
      touch('l', q)
      if not rec then E.lose(ids[i], q) end
    end
  end
  E.save()
end
flush()
return {removed, #next_ids(1) > 0 and 1 or 0}
