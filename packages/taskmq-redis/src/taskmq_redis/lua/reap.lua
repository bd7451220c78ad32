-- {recover, limit, timed_out, dead_ttl, dead_max, finished_max, worker_ttl}: one bounded pass of maintenance.
local recover, left, timed_out = A[1], A[2], A[3]
local dead_ttl, dead_max, finished_max, worker_ttl = A[4], A[5], A[6], A[7]
local E = endings()
local requeued, handed, pruned = 0, 0, 0

local function due(key)
  local ids = call('ZRANGEBYSCORE', B .. key, '-inf', now_text, 'LIMIT', 0, left)
  if prefetch then soon(ids, itself) end
  return ids
end

local function take_back()
  for _, id in ipairs(due('le')) do
    left = left - 1
    local rec = E.load(id)
    if not rec or rec.f.w ~= 'l' then
      put('ZREM', B .. 'le', id)
      if not rec then E.lose(id) end
    elseif rec.f.ak or E.num(rec, 'd', 1) >= E.num(rec, 'md', 5) then
      E.bury(rec, E.WORKER_LOST)
    else
      local over = tonumber(call('ZSCORE', B .. 'le', id))
      E.take_out(rec)
      E.set(rec, 's', 'QUEUED')
      -- The receipt stays good until somebody else reserves the message.
      E.set(rec, 'lt', '1')
      E.set(rec, 'lv', int(over - E.num(rec, 'ra', over)))
      E.give_back(rec, nil)
      if rec.f.w ~= 'e' then requeued = requeued + 1 end
    end
  end
end

local UNREAD = {r = true, d = true, b = true, h = true, x = true}
local function expire()
  for _, id in ipairs(due('ex')) do
    local rec = E.load(id)
    -- Indexed again when it is given back.
    put('ZREM', B .. 'ex', id)
    if not rec then E.lose(id) end
    if rec and UNREAD[rec.f.w] and rec.f.ex and not rec.f.oc then
      left = left - 1
      E.end_job(rec, 'EXPIRED', {error = E.error_of('expired')})
    end
  end
end

local function time_out()
  for _, id in ipairs(due('pk')) do
    left = left - 1
    local rec = E.load(id)
    if rec and rec.f.w == 'p' then
      handed = handed + 1
      E.complete(rec, timed_out)
    else
      put('ZREM', B .. 'pk', id)
      if not rec then E.lose(id) end
    end
  end
end

local function prune_dead()
  while left > 0 do
    local id = call('ZRANGE', B .. 'dead', 0, 0)[1]
    if not id then return end
    local rec = E.load(id)
    if rec and rec.f.dn then
      local old = dead_ttl and E.num(rec, 'fa', 0) + dead_ttl <= now
      if not old and not (dead_max and tonumber(call('ZCARD', B .. 'dead')) > dead_max) then return end
      E.forget_ended(rec)
      E.retain(rec)
    else
      put('ZREM', B .. 'dead', id)
    end
    left = left - 1
    pruned = pruned + 1
  end
end

-- Steps of runs that have ended, kept until then, are kept for their time only.
local function release_steps()
  for _, run in ipairs(call('SMEMBERS', B .. 'rend')) do
    local of = E.load(run)
    if of and of.f.w ~= 'e' then
      put('SREM', B .. 'rend', run)
    else
      local ids = call('SMEMBERS', B .. 'rk:' .. run)
      for i = 1, math.min(#ids, math.max(left, 0)) do
        put('SREM', B .. 'rk:' .. run, ids[i])
        local rec = E.load(ids[i])
        if rec and rec.f.w == 'e' and not rec.f.dn then E.retain(rec) end
        left = left - 1
      end
      if left <= 0 then return end
      put('SREM', B .. 'rend', run)
    end
  end
end

local function forget(id)
  local rec = E.load(id)
  put('ZREM', B .. 'done', id)
  if rec then
    local run = rec.f.ru and rec.f.ru ~= id and E.load(rec.f.ru)
    if run and run.f.w ~= 'e' then
      put('SADD', B .. 'rk:' .. rec.f.ru, id)
      return
    end
    rec.gone = true
  end
  put('DEL', B .. 'j:' .. id, B .. 'a:' .. id, B .. 'af:' .. id)
  put('ZREM', B .. 'ids', id)
end

local function prune_finished()
  local over = finished_max and tonumber(call('ZCARD', B .. 'done')) - finished_max or 0
  if over > 0 and left > 0 then
    for _, id in ipairs(call('ZRANGE', B .. 'done', 0, math.min(over, left) - 1)) do
      forget(id)
      left = left - 1
      pruned = pruned + 1
    end
  end
  if left <= 0 then return end
  for _, id in ipairs(due('done')) do
    forget(id)
    left = left - 1
    pruned = pruned + 1
  end
end

local function prune_workers()
  local over = call('ZRANGEBYSCORE', B .. 'ws', '-inf', int(now - worker_ttl), 'LIMIT', 0, 100)
  for _, worker in ipairs(over) do
    put('ZREM', B .. 'ws', worker)
    put('DEL', B .. 'wk:' .. worker, B .. 'tw:' .. worker, B .. 'cn:' .. worker)
    put('ZREM', B .. 'liver', '\0c' .. worker)
  end
end

-- Looks at some of the queues in each pass, and forgets the empty ones.
local function prune_queues()
  local names = call('SMEMBERS', B .. 'qs')
  local from = math.floor(now / 1000000) % math.max(1, math.ceil(#names / 50)) * 50
  for i = from + 1, math.min(from + 50, #names) do
    local q = names[i]
    local full = call('EXISTS', B .. 'r:' .. q, B .. 'l:' .. q, B .. 'd:' .. q, B .. 'n:' .. q,
      B .. 'dead:' .. q, B .. 'bl:' .. q, B .. 'xt:' .. q)
    if full == 0 and not lines[q] and not dues[q] and not counts[q] then
      put('SREM', B .. 'qs', q)
      put('DEL', B .. 't:' .. q)
      touch('r', q)
      touch('l', q)
      dues[q] = true
    end
  end
end

if recover then take_back() end
if left > 0 then expire() end
if left > 0 then time_out() end
prune_dead()
release_steps()
prune_finished()
prune_workers()
prune_queues()
E.save()
flush()
local mended = walk(E)
-- A mark in the list of all jobs says that nobody took the list away.
local unlisted = not call('ZSCORE', B .. 'ids', '')
-- Nothing to list where nothing was ever enqueued; one key alone may have been lost as well.
if unlisted and call('EXISTS', B .. 'seq', B .. 'qs', B .. 'done', B .. 'dead') == 0 then
  put('ZADD', B .. 'ids', 0, '')
  unlisted = false
end

local next_at
for _, key in ipairs(recover and {'le', 'ex', 'pk', 'done'} or {'ex', 'pk', 'done'}) do
  local at = tonumber(call('ZRANGE', B .. key, 0, 0, 'WITHSCORES')[2])
  if at and (not next_at or at < next_at) then next_at = at end
end
return {
  requeued, handed, pruned, E.ended, next_at and int(math.max(next_at - now, 0)) or '',
  (left <= 0 or mended > 0 or call('EXISTS', B .. 'rend') == 1) and 1 or 0, unlisted and 1 or 0,
}
