-- {id, token, meta}: replaces the meta of the job that this receipt holds or whose last settlement it made.
local E = endings()
local rec, token = E.load(A[1]), A[2]
if not rec then return 0 end
local settled = rec.f.s == 'RETRYING' and sub(rec.f.sd or '', 1, #token) == token
if rec.f.r ~= token and not settled then return 0 end
E.set(rec, 'm', A[3])
E.save()
return 1
