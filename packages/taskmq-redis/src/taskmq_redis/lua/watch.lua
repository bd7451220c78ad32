-- {ids, waiter, on}: registers a waiter on the jobs that have not ended, or takes it off; those that are open.
local open = {}
if prefetch then soon(A[1], itself) end
for _, id in ipairs(A[1]) do
  local key = B .. 'j:' .. id
  local f = call('HMGET', key, 'b', 'v', 'w', 'wt')
  local has_ended = f[3] == 'e' or (f[2] and sub(f[2], 1, 1) == 'e')
  if (f[1] or f[3]) and not has_ended then
    open[#open + 1] = id
    local others = {}
    for name in string.gmatch(f[4] or '', '%S+') do
      if name ~= A[2] then others[#others + 1] = name end
    end
    if A[3] then others[#others + 1] = A[2] end
    if #others > 0 then
      put('HSET', key, 'wt', table.concat(others, ' '))
    elseif f[4] then
      put('HDEL', key, 'wt')
    end
  end
end
return open
