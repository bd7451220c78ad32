-- {ids, is_last}: names jobs in the list of all jobs again; the mark says that none is missing.
local present = {}
for _, id in ipairs(A[1]) do
  if call('EXISTS', B .. 'j:' .. id) == 1 then
    present[#present + 1] = '0'
    present[#present + 1] = id
  end
end
many('ZADD', B .. 'ids', present)
if A[2] then put('ZADD', B .. 'ids', 0, '') end
return #present / 2
