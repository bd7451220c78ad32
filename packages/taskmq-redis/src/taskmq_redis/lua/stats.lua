-- {names or false}: for each queue {name, counters, dead, bands}; a band is {priority, pending, since}.
local names = A[1] or call('SMEMBERS', B .. 'qs')
local answers = {}

-- Delayed messages that are due count as pending, though nobody has asked for them yet.
local function promote(q)
  local ids = call('ZRANGEBYSCORE', B .. 'd:' .. q, '-inf', now_text, 'LIMIT', 0, 500)
  for _, id in ipairs(ids) do
    local rec = endings().load(id)
    put('ZREM', B .. 'd:' .. q, id)
    if rec and rec.f.w == 'd' then
      count(q, 'd' .. rec.p, -1)
      endings().put_ready(rec)
    end
    dues[q] = true
  end
end

for _, q in ipairs(names) do promote(q) end
if built then built.save() end
flush()
for _, q in ipairs(names) do
  local bands = {}
  for priority = 9, -9, -1 do
    local low, high = int((9 - priority) * SHIFT), '(' .. int((10 - priority) * SHIFT)
    local pending, oldest = 0, nil
    for _, kind in ipairs({'r:', 'l:'}) do
      local n = tonumber(call('ZCOUNT', B .. kind .. q, low, high))
      if n > 0 then
        pending = pending + n
        local first = call('ZRANGEBYSCORE', B .. kind .. q, low, high, 'LIMIT', 0, 1)[1]
        local f = call('HMGET', B .. 'j:' .. first, 'at', 'du', 'b')
        local since = math.max(tonumber(f[1] or f[3] and sub(f[3], 17, 32)) or now, tonumber(f[2]) or 0)
        if not oldest or since < oldest then oldest = since end
      end
    end
    if pending > 0 then bands[#bands + 1] = {priority, pending, int(math.max(now - oldest, 0))} end
  end
  answers[#answers + 1] = {
    q, call('HGETALL', B .. 'n:' .. q), tonumber(call('ZCARD', B .. 'dead:' .. q)), bands,
  }
end
return answers
