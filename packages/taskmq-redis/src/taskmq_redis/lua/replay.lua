-- {ids, queue, priority}: reopens dead jobs; how many.
local E = endings()
local replayed = 0
for _, id in ipairs(A[1]) do
  local rec = E.load(id)
  if rec and rec.f.dn and not reopen({id}, {}, false, A[2] or nil, A[3] or nil) then
    replayed = replayed + 1
  end
end
E.save()
flush()
return replayed
