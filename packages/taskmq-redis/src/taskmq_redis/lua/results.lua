-- {ids}: for each job its state and, if it has one, its result; false for none. Reads what `show` would, and no more.
local answers = {}
if prefetch then soon(A[1], itself) end
for i, id in ipairs(A[1]) do
  local f = call('HMGET', B .. 'j:' .. id, 's', 'rs', 'b', 'v')
  local state = f[1]
  if not state and f[3] then
    state = not f[4] and 'QUEUED' or sub(f[4], 1, 1) == 'e' and 'SUCCEEDED' or 'RUNNING'
  end
  answers[i] = state and {state, f[2]}
end
return answers
