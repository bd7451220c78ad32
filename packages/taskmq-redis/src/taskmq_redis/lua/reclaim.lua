-- {worker, keep, rank}: gives back, uncounted, what the worker holds without knowing it; {given, next rank or -1}.
-- Some of the leases of all workers in each call: it is rare that a reply was lost.
local PAGE = 500
local worker, known, given, rank = A[1], {}, 0, A[3]
for _, receipt in ipairs(A[2]) do known[receipt] = true end
local E = endings()
local ids = call('ZRANGE', B .. 'le', rank, rank + PAGE - 1)

local function holder(id)
  local f = call('HMGET', B .. 'j:' .. id, 'v', 'wk')
  return f[2] or f[1] and sub(f[1], 97 + sub(f[1], 92, 96))
end

if prefetch then soon(ids, itself) end
for _, id in ipairs(ids) do
  local rec = holder(id) == worker and E.load(id)
  if rec and rec.f.w == 'l' and not known[(rec.f.r or '') .. '-' .. id] and not rec.f.ak then
    E.take_out(rec)
    E.set(rec, 'r', nil)
    E.set(rec, 'd', E.num(rec, 'd', 1) - 1)
    E.set(rec, 's', 'QUEUED')
    E.set(rec, 'kp', nil)
    E.give_back(rec, nil)
    given = given + 1
  end
end
E.save()
flush()
return {given, #ids == PAGE and rank + PAGE - given or -1}
