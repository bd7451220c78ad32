-- {ids, states, queue, task}: those of the ids whose job is in one of the states, in the queue and of the task; any for
-- false. Most listings want few of many, and a whole record costs ten times this look.
local wanted, queue, task = A[2], A[3], A[4]
local picked = {}
if prefetch then soon(A[1], itself) end
for _, id in ipairs(A[1]) do
  local f = call('HMGET', B .. 'j:' .. id, 's', 'q', 't', 'b', 'v')
  local state, q, t = f[1], f[2], f[3]
  if f[4] then
    local size = tonumber(sub(f[4], 51, 55))
    state = not f[5] and 'QUEUED' or sub(f[5], 1, 1) == 'e' and 'SUCCEEDED' or 'RUNNING'
    q, t = sub(f[4], 56, 55 + size), sub(f[4], 56 + size)
  end
  if state and (not wanted or wanted[state]) and (not queue or q == queue) and (not task or t == task) then
    picked[#picked + 1] = id
  end
end
return picked
