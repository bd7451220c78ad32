-- A new series of ended records, all or none; what depends on them is held again.
local function reopen(ids, expect, all, queue, priority)
  local E = endings()

  local function taskless(rec)
    return rec.f.hd ~= nil and cmsgpack.unpack(rec.f.hd).finish == true
  end

  local function clear(rec)
    E.take_out(rec)
    E.set(rec, 'sr', E.num(rec, 'sr', 1) + 1)
    for _, field in ipairs({
      'r', 'wk', 'sd', 'a', 'd', 'y', 'du', 'ra', 'sa', 'fa', 'cr', 'rx', 'cp', 'rs', 'er', 'm', 'rn',
    }) do
      if rec.f[field] then E.set(rec, field, nil) end
    end
    if rec.f.ex then
      put('ZREM', B .. 'ex', rec.id)
      E.set(rec, 'ex', nil)
    end
    if rec.f.k and not E.key_owner(rec.f.k) then E.hold_key(rec) end
  end

  local named, names = {}, {}
  for _, id in ipairs(ids) do
    if not names[id] then
      local rec = E.load(id)
      if not rec then return 'there is no job ' .. id end
      if rec.f.w ~= 'e' then return 'job ' .. id .. ' has not ended, it is ' .. rec.f.s end
      names[id] = true
      named[#named + 1] = rec
    end
  end
  for id, series in pairs(expect) do
    local rec = E.load(id)
    local found = rec and E.num(rec, 'sr', 1)
    if found ~= series then
      return 'job ' .. id .. ' is ' .. (found and 'in series ' .. found or 'missing')
        .. ', not in series ' .. series
    end
  end

  local held, order = {}, {}
  local pending, at = {}, 1
  for i, rec in ipairs(named) do pending[i] = rec end
  while pending[at] do
    local rec = pending[at]
    at = at + 1
    for _, edge in ipairs(rec.f.su and cmsgpack.unpack(rec.f.su) or {}) do
      local target = E.load(edge[1])
      if target and target.f.hd and not held[target.id] then
        local wanted = all or target.f.s == 'SKIPPED' or target.f.w == 'h' or names[target.id]
          or taskless(target)
        if wanted then
          if target.f.w ~= 'e' and target.f.w ~= 'h' then
            return 'job ' .. target.id .. ', which depends on it, is ' .. target.f.s
          end
          held[target.id] = target
          order[#order + 1] = target
          pending[#pending + 1] = target
        end
      end
    end
  end

  local roots, sources, reopened = {}, {}, {}
  for _, rec in ipairs(named) do
    if not held[rec.id] then
      if taskless(rec) then
        -- A run named by itself has nothing to be queued: it is held and judged anew.
        held[rec.id] = rec
        order[#order + 1] = rec
      else
        roots[#roots + 1] = rec
        reopened[#reopened + 1] = rec.id
      end
    end
    sources[#sources + 1] = rec.id
  end
  for _, rec in ipairs(order) do
    if not names[rec.id] then sources[#sources + 1] = rec.id end
    if rec.f.w == 'e' then reopened[#reopened + 1] = rec.id end
  end
  for _, rec in ipairs(order) do
    many('SREM', B .. 'a:' .. rec.id, sources)
    many('SREM', B .. 'af:' .. rec.id, sources)
    if rec.f.fn then E.set(rec, 'fn', call('SCARD', B .. 'af:' .. rec.id)) end
    if rec.f.w == 'e' then
      clear(rec)
      put('SADD', B .. 'qs', rec.f.q)
      E.put_held(rec)
    end
  end
  local place = #roots > 0 and numbers(#roots)
  for i, rec in ipairs(roots) do
    clear(rec)
    if queue then E.set(rec, 'q', queue) end
    -- Reap may have forgotten a queue that had nothing but ended jobs.
    put('SADD', B .. 'qs', rec.f.q)
    if priority then
      E.set(rec, 'p', priority)
      rec.p = priority
    end
    E.set(rec, 's', 'QUEUED')
    E.set(rec, 'at', now_text)
    rec.n = place + i
    E.set(rec, 'n', int(rec.n))
    E.put_ready(rec)
  end
  for _, rec in ipairs(order) do E.judge(rec, '', 'ok') end
  return nil, reopened
end
