-- {id, token, completion}: ends a parked job from outside; {status, reason}.
local E = endings()
local id, token, done = A[1], A[2], A[3]
local OTHER = 'it was completed with another outcome before'

local function complete()
  local rec = E.load(id)
  if not rec then return {'refused', 'there is no job ' .. id} end
  local before = rec.f.cp
  if before and string.sub(before, 1, #token) == token then
    if string.sub(before, #token + 1) == done[1] then return {'already', ''} end
    return {'refused', OTHER}
  end
  if rec.f.r ~= token then
    return {'refused', 'the token belongs to an earlier delivery of the job'}
  end
  if rec.f.w == 'p' then return {E.complete(rec, done) and 'ok' or 'handed', ''} end
  if rec.f.w ~= 'l' and not rec.f.lt then return {'refused', 'the job has ended ' .. rec.f.s} end
  if not rec.f.kp then
    E.set(rec, 'kp', cmsgpack.pack(done))
    return {'kept', ''}
  end
  if cmsgpack.unpack(rec.f.kp)[1] == done[1] then return {'already', ''} end
  return {'refused', OTHER}
end

local answer = complete()
E.save()
flush()
return answer
