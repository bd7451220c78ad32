-- {wishes}: {name, interval, due, tolerance}; microseconds until the turn of each, as taskmq.transport.rates counts.
local KEPT = 3600000000
local answers = {}
for i, wish in ipairs(A[1]) do
  local key, interval, due, tolerance = B .. 'rt:' .. wish[1], wish[2], wish[3], wish[4]
  local f = call('HMGET', key, 'f', 'p')
  local free, promised = tonumber(f[1]) or 0, tonumber(f[2]) or 0
  local starts
  if due > 0 and due <= now + tolerance then
    starts = free - now <= tolerance
  else
    starts = math.max(free, promised) <= now
  end
  if starts then
    free = math.max(now, free) + interval
    promised = math.max(promised, free)
    answers[i] = 0
  else
    local turn = math.max(now, free, promised)
    promised = turn + interval
    answers[i] = math.max(turn - now, 1000)
  end
  put('HSET', key, 'f', int(free), 'p', int(promised))
  put('PEXPIREAT', key, int((math.max(free, promised) + KEPT) / 1000))
end
return answers
