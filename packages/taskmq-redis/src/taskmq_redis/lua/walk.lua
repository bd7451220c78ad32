-- Compares records with the indexes that must name them, some in each pass of reap: a key that was evicted or
-- deleted costs time, never a job. Everything that a pass finds amiss is mended at once, and the next follows.
local PACE = 900000
local UNKNOWN_LEASE = 60000000
local OF_A_WALK = prefetch and 50 or 500

local function walk(E)
  local mended, counted, looked_at, seen = 0, {}, {}, {}

  local function missing(key, id) return not call('ZSCORE', B .. key, id) end
  local function outside(key, id) return call('SISMEMBER', B .. key, id) == 0 end
  local function found() mended = mended + 1 end
  local function tally(q, field)
    local of = counted[q]
    if not of then of = {}; counted[q] = of end
    of[field] = (of[field] or 0) + 1
  end

  local function put_back(rec)
    local q, kind = rec.f.q, E.is_last(rec) and 'l' or 'r'
    put('ZADD', B .. kind .. ':' .. q, score(rec.p, rec.n), rec.id)
    touch(kind, q)
    wake(q, 1)
    found()
  end

  local function check_slot(rec)
    if rec.f.sl and outside('cs:' .. rec.f.c, rec.id) then
      put('SADD', B .. 'cs:' .. rec.f.c, rec.id)
      found()
    end
  end

  local function check_key(rec)
    local k, f = rec.f.k, rec.f
    if not k or call('EXISTS', B .. 'k:' .. k) == 1 then return end
    local until_then = tonumber(f.at) + E.num(rec, 'kt', 0)
    local is_open = f.w ~= 'e' and not (f.ks == 'until_start' and f.ra)
    if is_open or (f.s == 'SUCCEEDED' and f.ks == 'window' and until_then > now) then
      put('HSET', B .. 'k:' .. k, 'i', rec.id, 'u', int(until_then), 's', f.ks or 'window')
      if not is_open then put('PEXPIREAT', B .. 'k:' .. k, int(until_then / 1000)) end
      found()
    end
  end

  -- What has ended must be forgotten in time, and those that wait for it must have heard of it.
  local function check_end(rec)
    local f, id = rec.f, rec.id
    if f.dn then
      if missing('dead', id) or missing('dead:' .. f.q, id) then
        put('ZADD', B .. 'dead', f.dn, id)
        put('ZADD', B .. 'dead:' .. f.q, f.dn, id)
        found()
      end
    elseif missing('done', id) then
      local run = f.ru
      if not run or outside('rk:' .. run, id) then
        E.retain(rec)
        found()
      else
        local of = E.load(run)
        if (not of or of.f.w == 'e') and outside('rend', run) then
          put('SADD', B .. 'rend', run)
          found()
        end
      end
    end
    for _, edge in ipairs(f.su and cmsgpack.unpack(f.su) or {}) do
      local target = E.load(edge[1])
      if target and target.f.w == 'h' and outside('a:' .. edge[1], id) then
        local verdict = f.s == 'SUCCEEDED' and 'ok' or (f.s == 'SKIPPED' and 'skipped' or 'failed')
        E.arrive(edge[1], id, E.num(rec, 'sr', 1), edge[2] and 'ok' or verdict, true)
        found()
      end
    end
  end

  local checks = {e = check_end}

  function checks.r(rec)
    if missing((E.is_last(rec) and 'l:' or 'r:') .. rec.f.q, rec.id) then put_back(rec) end
  end

  function checks.d(rec)
    local q = rec.f.q
    tally(q, 'd' .. rec.p)
    if missing('d:' .. q, rec.id) then
      put('ZADD', B .. 'd:' .. q, rec.f.du, rec.id)
      dues[q] = true
      found()
    end
  end

  function checks.l(rec)
    tally(rec.f.q, 'l' .. rec.p)
    if missing('le', rec.id) then
      put('ZADD', B .. 'le', int(now + UNKNOWN_LEASE), rec.id)
      found()
    end
    if rec.f.cr and call('HEXISTS', B .. 'cn:' .. rec.f.wk, rec.f.r .. '-' .. rec.id) == 0 then
      tell_cancelled(rec.f.wk, rec.f.r .. '-' .. rec.id, rec.f.cr)
    end
    check_slot(rec)
  end

  function checks.b(rec)
    tally(rec.f.q, 'b' .. rec.p)
    local is_first = not looked_at[rec.f.c]
    looked_at[rec.f.c] = true
    if E.mend_line(rec, is_first) then found() end
  end

  function checks.h(rec) tally(rec.f.q, 'h') end

  function checks.p(rec)
    tally(rec.f.q, 'w')
    if rec.f.du and missing('pk', rec.id) then
      put('ZADD', B .. 'pk', rec.f.du, rec.id)
      found()
    end
    check_slot(rec)
  end

  function checks.x(rec)
    tally(rec.f.q, 'x' .. rec.p)
    if outside('xt:' .. rec.f.q, rec.id) then
      put('SADD', B .. 'xt:' .. rec.f.q, rec.id)
      found()
    end
  end

  local UNREAD = {r = true, d = true, b = true, h = true, x = true}
  local function check(rec)
    local f = rec.f
    checks[f.w](rec)
    check_key(rec)
    if f.w == 'e' then return end
    if UNREAD[f.w] and f.ex and not f.oc and missing('ex', rec.id) then
      put('ZADD', B .. 'ex', f.ex, rec.id)
      found()
    end
    seen[f.q] = true
  end

  -- Plain records are looked up many at once: by the index that must name them.
  local expected = {}
  local function expect(key, id)
    local of = expected[key]
    if not of then of = {}; expected[key] = of end
    of[#of + 1] = id
  end

  local function sort_out(id)
    local f = call('HMGET', B .. 'j:' .. id, 'b', 'v', 'w', 'su', 'ru')
    if f[3] or f[4] or f[5] then
      check(E.load(id))
    elseif not f[1] then
      expect('done', id)
    else
      local q = sub(f[1], 56, 55 + sub(f[1], 51, 55))
      local has_ended = f[2] and sub(f[2], 1, 1) == 'e'
      if not has_ended then seen[q] = true end
      if not f[2] then
        expect('r:' .. q, id)
      elseif not has_ended then
        tally(q, 'l' .. int(9 - sub(f[1], 49, 50)))
        expect('le', id)
      else
        expect('done', id)
      end
    end
  end

  local function look_up()
    for key, ids in pairs(expected) do
      local scores = call('ZMSCORE', B .. key, unpack(ids))
      for i, id in ipairs(ids) do
        local rec = not scores[i] and E.load(id)
        if rec then
          check(rec)
        elseif not scores[i] then
          E.lose(id)
          found()
        end
      end
    end
  end

  -- What comes first in a queue that nobody reads may be a job that was lost.
  local function check_head(q)
    local id = call('ZRANGE', B .. 'r:' .. q, 0, 0)[1]
    if not id then return end
    local f = call('HMGET', B .. 'j:' .. id, 'b', 'v', 'w')
    if f[3] == 'r' or (f[1] and not f[2]) then return end
    if not f[1] and not f[3] then E.lose(id, q) end
    put('ZREM', B .. 'r:' .. q, id)
    touch('r', q)
    found()
  end

  -- Queues are found by the best band and the first due time that the indexes give them.
  local function check_queues()
    for q in pairs(seen) do
      if call('SADD', B .. 'qs', q) == 1 then found() end
    end
    local names = call('SMEMBERS', B .. 'qs')
    local from = math.floor(now / 1000000) % math.max(1, math.ceil(#names / 50)) * 50
    local some = {unpack(names, from + 1, math.min(from + 50, #names))}
    if #some == 0 then return end
    for index, kind in pairs({liver = 'r', livel = 'l', due = 'd'}) do
      local known, others = look(index, some, {'\0due', '\0last'})
      for i, q in ipairs(some) do
        if not known[i] and call('EXISTS', B .. kind .. ':' .. q) == 1 then
          if kind == 'd' then dues[q] = true else touch(kind, q) end
          found()
        end
      end
      if kind == 'r' then
        for i, q in ipairs(some) do
          if known[i] then check_head(q) end
        end
        if not others[1] and call('EXISTS', B .. 'due') == 1 then dues[some[1]] = true end
        if not others[2] and call('EXISTS', B .. 'livel') == 1 then
          put('ZADD', B .. 'liver', 1, '\0last')
        end
      end
    end
  end

  -- Counters are right again when all jobs were seen in one pass.
  local function recount()
    for _, q in ipairs(call('SMEMBERS', B .. 'qs')) do counted[q] = counted[q] or {} end
    for q, right in pairs(counted) do
      local flat = call('HGETALL', B .. 'n:' .. q)
      for i = 1, #flat, 2 do
        local n = right[flat[i]]
        right[flat[i]] = nil
        if not n then
          put('HDEL', B .. 'n:' .. q, flat[i])
        elseif n ~= tonumber(flat[i + 1]) then
          put('HSET', B .. 'n:' .. q, flat[i], n)
        end
      end
      for field, n in pairs(right) do put('HSET', B .. 'n:' .. q, field, n) end
    end
  end

  local at = call('HMGET', B .. 'walk', 'id', 'last')
  if at[2] and now - at[2] < PACE then return 0 end
  local from = at[1] and '(' .. at[1] or '-'
  local ids = call('ZRANGEBYLEX', B .. 'ids', from, '+', 'LIMIT', 0, OF_A_WALK)
  if not at[1] and (#ids == 0 or (#ids == 1 and ids[1] == '')) then return 0 end
  if prefetch then soon(ids, itself) end
  for _, id in ipairs(ids) do
    if id ~= '' then sort_out(id) end
  end
  look_up()
  check_queues()
  local is_whole = #ids < OF_A_WALK
  E.save()
  flush()
  if is_whole and not at[1] and mended == 0 then recount() end
  if is_whole then put('HDEL', B .. 'walk', 'id') else put('HSET', B .. 'walk', 'id', ids[#ids]) end
  put('HSET', B .. 'walk', 'last', mended > 0 and 0 or now_text)
  put('PEXPIRE', B .. 'walk', 3600000)
  return mended
end
