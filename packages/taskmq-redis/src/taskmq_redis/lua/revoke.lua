-- {ids, terminate}: cancels jobs; an answer {status, state} for each.
local E = endings()
local answers = {}
if prefetch then soon(A[1], itself) end
for i, id in ipairs(A[1]) do
  local rec = E.load(id)
  if not rec then
    answers[i] = {'unknown', ''}
  elseif rec.f.w == 'e' then
    answers[i] = {'final', rec.f.s}
  else
    local force = A[2] or rec.f.cr == '2'
    E.set(rec, 'cr', force and '2' or '1')
    if rec.f.w == 'l' then
      tell_cancelled(rec.f.wk, rec.f.r .. '-' .. id, rec.f.cr)
      push(B .. 'tw:' .. rec.f.wk, 1)
      answers[i] = {'cancelling', rec.f.s}
    else
      E.end_job(rec, 'REVOKED', {error = E.REVOKED})
      answers[i] = {'revoked', 'REVOKED'}
    end
  end
end
E.save()
flush()
return answers
