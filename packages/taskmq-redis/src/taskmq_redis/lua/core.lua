-- What most scripts have: places in queues, counters, wake-ups, and the packed form of plain records.
local TOKENS = 16
local function score(p, n) return int((9 - p) * SHIFT + n) end
local function band_of(s) return math.floor(s / SHIFT) end

-- A plain job's record: `b`, what never changes: job_ttl, enqueued_at and place (16 digits each), band (2), length of
-- the queue's name (5), queue, task; and once reserved `v`: l (leased) or e (ended well), receipt (24), job_ttl,
-- started_at, finished_at, reserved_at (16 each, 0 for none), band, length, queue, worker. Steps may be plain too,
-- with `su`, `g`, `ru` and `sp` beside, as in any record.
local NEVER = '0000000000000000'
local function packed(m, n)
  local q = m[3]
  return wide(m[6]) .. now_text .. wide(n) .. string.format('%02d%05d', 9 - m[4], #q) .. q .. m[2]
end

-- Makes the fields that all other records have of it.
local function spread(f)
  local b, v = f.b, f.v
  local size = tonumber(sub(b, 51, 55))
  f.jt, f.at, f.n, f.p = sub(b, 1, 16), sub(b, 17, 32), sub(b, 33, 48), int(9 - sub(b, 49, 50))
  f.q, f.t = sub(b, 56, 55 + size), sub(b, 56 + size)
  f.w, f.s = 'r', 'QUEUED'
  if v then
    f.w, f.s, f.d = 'l', 'RUNNING', '1'
    f.r, f.ra, f.wk = sub(v, 2, 25), sub(v, 74, 89), sub(v, 97 + size)
    if sub(v, 42, 57) ~= NEVER then f.sa = sub(v, 42, 57) end
    if sub(v, 1, 1) == 'e' then f.w, f.s, f.fa = 'e', 'SUCCEEDED', sub(v, 58, 73) end
  end
  f.b, f.v = nil, nil
end

-- Queues whose lines, delayed or wake-ups changed in this call, and counters to be raised.
local lines, dues, woken, counts = {}, {}, {}, {}

local function count(q, field, n)
  local of = counts[q]
  if not of then of = {}; counts[q] = of end
  of[field] = (of[field] or 0) + n
end

local function wake(q, n) woken[q] = (woken[q] or 0) + n end

-- Numbers that rise for ever, also when their key was lost: they start at the time in milliseconds.
local function numbers(n)
  local last = tonumber(call('INCRBY', B .. 'seq', n))
  local least = math.floor(now / 1000)
  if last < least then
    last = least + n
    put('SET', B .. 'seq', int(last))
  end
  return last - n
end

-- Keeps the index of queues by their best band: `kind` is r (ready) or l (last chance). What all workers ask
-- for stands beside the queues of the first, so that one command tells everything.
local function refresh(kind, q, before)
  local score = call('ZRANGE', B .. kind .. ':' .. q, 0, 0, 'WITHSCORES')[2]
  local band = score and band_of(score)
  if band and band == before then return band end
  if band then put('ZADD', B .. 'live' .. kind, band, q) else put('ZREM', B .. 'live' .. kind, q) end
  if kind == 'l' then
    if band then
      put('ZADD', B .. 'liver', 1, '\0last')
    elseif call('ZCARD', B .. 'livel') == 0 then
      put('ZREM', B .. 'liver', '\0last')
    end
  end
  return band
end

-- Keeps the index of queues by their first due time.
local function refresh_due(queues)
  for q in pairs(queues) do
    local first = call('ZRANGE', B .. 'd:' .. q, 0, 0, 'WITHSCORES')[2]
    if first then put('ZADD', B .. 'due', first, q) else put('ZREM', B .. 'due', q) end
  end
  local soonest = call('ZRANGE', B .. 'due', 0, 0, 'WITHSCORES')[2]
  if soonest then put('ZADD', B .. 'liver', soonest, '\0due') else put('ZREM', B .. 'liver', '\0due') end
end

-- Tells the holder of a delivery that its job is cancelled.
local function tell_cancelled(worker, receipt, how)
  put('HSET', B .. 'cn:' .. worker, receipt, how)
  put('PEXPIRE', B .. 'cn:' .. worker, 604800000)
  put('ZADD', B .. 'liver', 1, '\0c' .. worker)
end

local function push(key, n)
  local standing = call('LLEN', key)
  local room = TOKENS - standing
  if room <= 0 then return end
  if n == 1 then
    put('RPUSH', key, '1')
  else
    local tokens = {}
    for i = 1, math.min(n, room) do tokens[i] = '1' end
    put('RPUSH', key, unpack(tokens))
  end
  if standing == 0 then put('PEXPIRE', key, 3600000) end
end

local function flush()
  for q, kinds in pairs(lines) do
    for kind in pairs(kinds) do refresh(kind, q) end
  end
  if next(dues) then refresh_due(dues) end
  for q, of in pairs(counts) do
    for field, n in pairs(of) do
      if n ~= 0 and tonumber(call('HINCRBY', B .. 'n:' .. q, field, n)) <= 0 then
        put('HDEL', B .. 'n:' .. q, field)
      end
    end
  end
  local any = 0
  for q, n in pairs(woken) do
    push(B .. 't:' .. q, n)
    any = any + n
  end
  if any > 0 then
    local many_until = call('ZSCORE', B .. 'liver', '\0many')
    if many_until and tonumber(many_until) > now then push(B .. 'tany', any) end
  end
  lines, dues, woken, counts = {}, {}, {}, {}
end

local function touch(kind, q)
  local kinds = lines[q]
  if not kinds then kinds = {}; lines[q] = kinds end
  kinds[kind] = true
end
