-- {ids, with envelopes}: for each job its fields, without the envelope unless asked for; false for none.
local answers = {}
if prefetch then soon(A[1], itself) end
for i, id in ipairs(A[1]) do
  local flat = call('HGETALL', B .. 'j:' .. id)
  if #flat == 0 then
    answers[i] = false
  else
    local kept, held = {}, false
    for j = 1, #flat, 2 do
      if flat[j] == 'hd' then held = true end
      if A[2] or flat[j] ~= 'e' then
        kept[#kept + 1] = flat[j]
        kept[#kept + 1] = flat[j + 1]
      end
    end
    if held then
      kept[#kept + 1] = 'arrived'
      kept[#kept + 1] = tostring(call('SCARD', B .. 'a:' .. id))
    end
    answers[i] = kept
  end
end
return answers
