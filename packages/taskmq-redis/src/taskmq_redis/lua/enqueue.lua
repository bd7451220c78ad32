-- {messages, fence}: stores them all; an answer {id, status} for each.
local fence = A[2]
if fence then
  local held = call('HMGET', B .. 'nl:' .. fence[1], 't', 'u')
  if held[1] ~= int(fence[2]) or tonumber(held[2]) <= now then return 'fenced' end
end
local answers = {}
admit(A[1], answers)
if built then built.save() end
flush()
return answers
