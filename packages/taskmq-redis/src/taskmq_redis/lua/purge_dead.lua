-- {ids or false, queue or false, limit}: drops dead letters; {dropped, more}.
local E = endings()
local ids, queue, dropped = A[1], A[2], 0
local listed = not ids
if listed then ids = call('ZRANGE', B .. (queue and 'dead:' .. queue or 'dead'), 0, A[3] - 1) end
for _, id in ipairs(ids) do
  local rec = E.load(id)
  if rec and rec.f.dn then
    if not queue or rec.f.q == queue then
      E.forget_ended(rec)
      E.retain(rec)
      dropped = dropped + 1
    end
  elseif listed then
    put('ZREM', B .. 'dead', id)
    if queue then put('ZREM', B .. 'dead:' .. queue, id) end
  end
end
E.save()
flush()
return {dropped, listed and #ids == A[3] and 1 or 0}
