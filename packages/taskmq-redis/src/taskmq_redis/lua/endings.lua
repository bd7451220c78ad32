-- Records, ends, and what follows from an end in the same step. Built only by calls that need it.
local built
local function endings()
  if built then return built end
  local E = {ended = {}}
  built = E
  local cache, arrivals, propagating = {}, {}, false
  local STUCK = 10000000
  local APART = {e = true, rs = true, rx = true, wt = true, su = true, g = true, ru = true, sp = true}

  -- Records ---------------------------------------------------------------------------------------

  local function load(id)
    local rec = cache[id]
    if rec ~= nil then return rec or nil end
    local flat = call('HGETALL', B .. 'j:' .. id)
    if #flat == 0 then
      cache[id] = false
      return nil
    end
    local f = {}
    for i = 1, #flat, 2 do f[flat[i]] = flat[i + 1] end
    local is_packed = f.b ~= nil
    if is_packed then spread(f) end
    rec = {id = id, f = f, dirty = {}, packed = is_packed, p = tonumber(f.p), n = tonumber(f.n)}
    cache[id] = rec
    return rec
  end
  E.load = load

  local function set(rec, field, value)
    if type(value) == 'number' then value = int(value) end
    rec.f[field] = value
    if value == nil then value = false end
    rec.dirty[field] = value
  end
  E.set = set

  function E.known(id) return cache[id] ~= nil end

  function E.fresh(id, f)
    local rec = {id = id, f = f, dirty = {}, p = tonumber(f.p), n = tonumber(f.n)}
    cache[id] = rec
    return rec
  end

  -- What is changed by more than the short ways is stored as all other records are.
  local function unpack_record(rec, dels)
    for field, value in pairs(rec.f) do
      if not APART[field] and rec.dirty[field] == nil then rec.dirty[field] = value end
    end
    dels[1], dels[2] = 'b', 'v'
    rec.packed = false
  end

  function E.save()
    for id, rec in pairs(cache) do
      if rec and not rec.gone then
        local sets, dels = {}, {}
        if rec.packed and next(rec.dirty) then unpack_record(rec, dels) end
        for field, value in pairs(rec.dirty) do
          if value then
            sets[#sets + 1] = field
            sets[#sets + 1] = value
          else
            dels[#dels + 1] = field
          end
        end
        if #sets > 0 then put('HSET', B .. 'j:' .. id, unpack(sets)) end
        if #dels > 0 then put('HDEL', B .. 'j:' .. id, unpack(dels)) end
        if rec.expire_at then put('PEXPIREAT', B .. 'j:' .. id, int(rec.expire_at / 1000)) end
      end
    end
    cache = {}
  end

  local function num(rec, field, default) return tonumber(rec.f[field]) or default end
  E.num = num
  local function max_deliveries(rec) return num(rec, 'md', 5) end
  local function is_last(rec)
    local d = num(rec, 'd', 0)
    return d > 0 and d >= max_deliveries(rec) - 1
  end
  E.is_last = is_last
  local function was_last(rec)
    local d = num(rec, 'd', 0)
    return d > 1 and d >= max_deliveries(rec)
  end

  -- Concurrency keys ------------------------------------------------------------------------------

  local function line_key(c, q) return B .. 'cw:' .. #c .. ':' .. c .. ':' .. q end
  local put_ready

  local function advance(c, q)
    local line = line_key(c, q)
    while true do
      local first = call('ZRANGE', line, 0, 0)[1]
      if not first then
        put('SREM', B .. 'cq:' .. c, q)
        return
      end
      local rec = load(first)
      if not rec then E.lose(first, q) end
      if rec and rec.f.w == 'b' then
        if tonumber(call('SCARD', B .. 'cs:' .. c)) >= num(rec, 'cl', 1) then return end
        put('ZREM', line, first)
        if tonumber(call('ZCARD', line)) == 0 then put('SREM', B .. 'cq:' .. c, q) end
        put('SREM', B .. 'bl:' .. q, first)
        count(q, 'b' .. rec.p, -1)
        set(rec, 'pr', '1')
        put_ready(rec)
        return
      end
      put('ZREM', line, first)
    end
  end

  function E.take_slot(rec)
    local c, q = rec.f.c, rec.f.q
    set(rec, 'pr', nil)
    if tonumber(call('SCARD', B .. 'cs:' .. c)) < num(rec, 'cl', 1) then
      put('SADD', B .. 'cs:' .. c, rec.id)
      set(rec, 'sl', '1')
      return true
    end
    set(rec, 'w', 'b')
    put('SADD', B .. 'bl:' .. q, rec.id)
    put('SADD', B .. 'cq:' .. c, q)
    put('ZADD', line_key(c, q), score(rec.p, rec.n), rec.id)
    count(q, 'b' .. rec.p, 1)
    return false
  end

  -- Whether anything about a blocked record was amiss: its line, or slots of holders that are no more.
  function E.mend_line(rec, with_slots)
    local c, q, changed = rec.f.c, rec.f.q, 0
    changed = changed + call('SADD', B .. 'bl:' .. q, rec.id) + call('SADD', B .. 'cq:' .. c, q)
      + call('ZADD', line_key(c, q), score(rec.p, rec.n), rec.id)
    if with_slots then
      for _, id in ipairs(call('SMEMBERS', B .. 'cs:' .. c)) do
        local holder = load(id)
        if not holder or not holder.f.sl or holder.f.w == 'e' then
          changed = changed + call('SREM', B .. 'cs:' .. c, id)
        end
      end
      local is_idle = call('SCARD', B .. 'cs:' .. c) == 0
      -- Who was promised the slot may have been lost; usually it is on its way.
      local is_stuck = is_idle and rec.f.bs and now - rec.f.bs > STUCK
      if rec.f.bs and (is_stuck or not is_idle) then set(rec, 'bs', nil) end
      if is_idle and not rec.f.bs and not is_stuck then set(rec, 'bs', now_text) end
      if changed > 0 or is_stuck then
        changed = changed + 1
        advance(c, q)
      end
    end
    return changed > 0
  end

  local function retake_slot(rec)
    if rec.f.c and not rec.f.sl then
      put('SADD', B .. 'cs:' .. rec.f.c, rec.id)
      set(rec, 'sl', '1')
    end
  end
  E.retake_slot = retake_slot

  local function free_slot(rec)
    local c = rec.f.c
    if not c or not rec.f.sl then return end
    set(rec, 'sl', nil)
    put('SREM', B .. 'cs:' .. c, rec.id)
    for _, q in ipairs(call('SMEMBERS', B .. 'cq:' .. c)) do advance(c, q) end
  end

  local function break_promise(rec)
    set(rec, 'pr', nil)
    local c, q = rec.f.c, rec.f.q
    if c and call('SISMEMBER', B .. 'cq:' .. c, q) == 1 then advance(c, q) end
  end

  -- Places ----------------------------------------------------------------------------------------

  function put_ready(rec)
    local q = rec.f.q
    if rec.f.xt then
      set(rec, 'w', 'x')
      put('SADD', B .. 'xt:' .. q, rec.id)
      count(q, 'x' .. rec.p, 1)
      return
    end
    local kind = is_last(rec) and 'l' or 'r'
    set(rec, 'w', 'r')
    put('ZADD', B .. kind .. ':' .. q, score(rec.p, rec.n), rec.id)
    touch(kind, q)
    wake(q, 1)
  end
  E.put_ready = put_ready

  local function put_due(rec, due)
    set(rec, 'du', due and int(due) or nil)
    if not due or due <= now or rec.f.xt then
      put_ready(rec)
      return
    end
    local q = rec.f.q
    set(rec, 'w', 'd')
    local key = B .. 'd:' .. q
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    put('ZADD', key, int(due), rec.id)
    count(q, 'd' .. rec.p, 1)
    dues[q] = true
    -- Who sleeps until the next due time must hear that it is earlier now.
    if not first or due < tonumber(first) then wake(q, 1) end
  end
  E.put_due = put_due

  function E.put_held(rec)
    set(rec, 'w', 'h')
    set(rec, 's', 'PENDING')
    count(rec.f.q, 'h', 1)
  end

  function E.put_leased(rec, worker, lease)
    set(rec, 'w', 'l')
    set(rec, 's', 'RUNNING')
    set(rec, 'wk', worker)
    set(rec, 'lt', nil)
    put('ZADD', B .. 'le', int(now + lease), rec.id)
    count(rec.f.q, 'l' .. rec.p, 1)
    if was_last(rec) then put('SADD', B .. 'wl:' .. worker, rec.id) end
  end

  local function forget_ended(rec)
    if rec.f.dn then
      put('ZREM', B .. 'dead', rec.id)
      put('ZREM', B .. 'dead:' .. rec.f.q, rec.id)
      set(rec, 'dn', nil)
      return
    end
    put('ZREM', B .. 'done', rec.id)
    if rec.f.ru then put('SREM', B .. 'rk:' .. rec.f.ru, rec.id) end
    rec.expire_at = nil
    put('PERSIST', B .. 'j:' .. rec.id)
    put('PERSIST', B .. 'a:' .. rec.id)
    put('PERSIST', B .. 'af:' .. rec.id)
  end
  E.forget_ended = forget_ended

  -- Takes a record out of wherever it is; it is in the caller's hand then.
  local function take_out(rec)
    local w, q, id = rec.f.w, rec.f.q, rec.id
    set(rec, 'w', '-')
    if w == 'l' then
      local worker = rec.f.wk
      put('ZREM', B .. 'le', id)
      count(q, 'l' .. rec.p, -1)
      if rec.f.cr and rec.f.r then put('HDEL', B .. 'cn:' .. worker, rec.f.r .. '-' .. id) end
      if was_last(rec) then put('SREM', B .. 'wl:' .. worker, id) end
    elseif w == 'r' then
      local kind = is_last(rec) and 'l' or 'r'
      put('ZREM', B .. kind .. ':' .. q, id)
      touch(kind, q)
    elseif w == 'd' then
      put('ZREM', B .. 'd:' .. q, id)
      count(q, 'd' .. rec.p, -1)
      dues[q] = true
    elseif w == 'b' then
      local line = line_key(rec.f.c, q)
      put('SREM', B .. 'bl:' .. q, id)
      put('ZREM', line, id)
      if tonumber(call('ZCARD', line)) == 0 then put('SREM', B .. 'cq:' .. rec.f.c, q) end
      count(q, 'b' .. rec.p, -1)
    elseif w == 'h' then
      count(q, 'h', -1)
    elseif w == 'p' then
      count(q, 'w', -1)
      put('ZREM', B .. 'pk', id)
    elseif w == 'x' then
      put('SREM', B .. 'xt:' .. q, id)
      count(q, 'x' .. rec.p, -1)
    elseif w == 'e' then
      forget_ended(rec)
    end
    if rec.f.pr then break_promise(rec) end
  end
  E.take_out = take_out

  -- Idempotency keys ------------------------------------------------------------------------------

  -- A key is a hash: the job's id, until when it holds (its window), and its scope.
  local function key_owner(key)
    local held = call('HMGET', B .. 'k:' .. key, 'i', 'u')
    if not held[1] then return nil end
    local owner = load(held[1])
    if (owner and owner.f.w ~= 'e') or now < tonumber(held[2]) then return held[1] end
    put('DEL', B .. 'k:' .. key)
    return nil
  end
  E.key_owner = key_owner

  function E.hold_key(rec)
    local f = rec.f
    put('DEL', B .. 'k:' .. f.k)
    put('HSET', B .. 'k:' .. f.k, 'i', rec.id, 'u', int(now + num(rec, 'kt', 0)), 's', f.ks or 'window')
  end

  local function free_key(rec)
    local key = rec.f.k
    if key and call('HGET', B .. 'k:' .. key, 'i') == rec.id then put('DEL', B .. 'k:' .. key) end
  end
  E.free_key = free_key

  local function end_key(rec)
    local key = rec.f.k
    if not key then return end
    local held = call('HMGET', B .. 'k:' .. key, 'i', 'u', 's')
    if held[1] ~= rec.id then return end
    if rec.f.s ~= 'SUCCEEDED' or held[3] == 'until_end' or tonumber(held[2]) <= now then
      put('DEL', B .. 'k:' .. key)
    else
      put('PEXPIREAT', B .. 'k:' .. key, int(tonumber(held[2]) / 1000))
    end
  end

  -- Ends ------------------------------------------------------------------------------------------

  local function error_of(reason, message)
    return {cmsgpack.pack({reason = reason, message = message or ''}), reason}
  end
  E.error_of = error_of
  E.REVOKED = error_of('revoked')
  E.WORKER_LOST =
    error_of('worker lost', 'the worker was lost on the last delivery that was allowed')

  local function retain(rec)
    local ttl, from = num(rec, 'jt', 0), num(rec, 'fa', now)
    local run = rec.f.ru
    if run and run ~= rec.id then
      local of = load(run)
      if of and of.f.w ~= 'e' then
        put('SADD', B .. 'rk:' .. run, rec.id)
        return
      end
      if of then from = math.max(from, num(of, 'fa', 0)) end
      put('ZADD', B .. 'done', int(from + ttl), rec.id)
      return
    end
    put('ZADD', B .. 'done', int(from + ttl), rec.id)
    -- A run stays as long as its steps may ask for it, and reap takes it with them.
    if not rec.f.hd then rec.expire_at = from + ttl end
  end
  E.retain = retain

  function E.add_dead(rec)
    local number = int(numbers(1) + 1)
    set(rec, 'dn', number)
    put('ZADD', B .. 'dead', number, rec.id)
    put('ZADD', B .. 'dead:' .. rec.f.q, number, rec.id)
  end

  local function tell_waiters(rec)
    for name in string.gmatch(rec.f.wt, '%S+') do
      put('RPUSH', B .. 'wj:' .. name, rec.id)
      put('PEXPIRE', B .. 'wj:' .. name, 60000)
    end
    set(rec, 'wt', nil)
  end

  local judge, propagate

  -- o: result, error {blob, reason}, dead, winner (its receipt decided), stored
  local function end_job(rec, state, o)
    if rec.f.w ~= '-' or rec.f.pr then take_out(rec) end
    free_slot(rec)
    set(rec, 'w', 'e')
    set(rec, 's', state)
    set(rec, 'fa', now_text)
    for _, field in ipairs({'du', 'lt', 'ak', 'oc', 'kp', 'lv'}) do
      if rec.f[field] then set(rec, field, nil) end
    end
    set(rec, 'rs', o.result or nil)
    if o.error then
      set(rec, 'er', o.error[1])
      set(rec, 'rn', o.error[2])
    elseif state ~= 'FAILED' then
      set(rec, 'er', nil)
      set(rec, 'rn', state ~= 'SUCCEEDED' and string.lower(state) or nil)
    end
    if not o.winner then set(rec, 'r', nil) end
    if rec.f.ex then put('ZREM', B .. 'ex', rec.id) end
    end_key(rec)
    if o.dead then E.add_dead(rec) else retain(rec) end
    -- Steps that were kept for this run are released by reap, some at a time.
    if rec.f.hd and cmsgpack.unpack(rec.f.hd).finish and call('EXISTS', B .. 'rk:' .. rec.id) == 1 then
      put('SADD', B .. 'rend', rec.id)
    end
    if rec.f.wt then tell_waiters(rec) end
    E.ended[#E.ended + 1] = {rec.id, rec.f.t, rec.f.q, state, rec.f.rn or ''}
    if rec.f.su then
      local verdict = state == 'SUCCEEDED' and 'ok' or (state == 'SKIPPED' and 'skipped' or 'failed')
      for _, edge in ipairs(cmsgpack.unpack(rec.f.su)) do
        arrivals[#arrivals + 1] = {edge[1], rec.id, num(rec, 'sr', 1), edge[2] and 'ok' or verdict}
      end
      if prefetch then soon(arrivals, first_of) end
      propagate()
    end
  end
  E.end_job = end_job

  function E.bury(rec, err, winner) end_job(rec, 'FAILED', {error = err, dead = true, winner = winner}) end

  -- A record that somebody took away: nothing is left to be run, but its job doesn't vanish unseen.
  function E.lose(id, q, p)
    local rec = E.fresh(id, {})
    local fields = {t = '', q = q or '(unknown)', p = p or 0, e = '', at = now_text, jt = 3600000000, w = '-'}
    for field, value in pairs(fields) do set(rec, field, value) end
    rec.p, rec.n = p or 0, 0
    set(rec, 'n', 0)
    put('ZADD', B .. 'ids', 0, id)
    put('SADD', B .. 'qs', rec.f.q)
    E.bury(rec, error_of('record lost', 'the record of the job was evicted or deleted'))
  end

  -- Gives a delivery back at its place; a cancelled one ends instead.
  function E.give_back(rec, due)
    free_slot(rec)
    if rec.f.cr then
      end_job(rec, 'REVOKED', {error = E.REVOKED})
      return
    end
    set(rec, 'wk', nil)
    if rec.f.ex then put('ZADD', B .. 'ex', rec.f.ex, rec.id) end
    put_due(rec, due)
  end

  -- Arrivals --------------------------------------------------------------------------------------

  local function decide(hold, need, arrived, failed)
    if need <= 0 then return 'release' end
    local complete = arrived >= need
    if hold.rule == 'all_ok' then
      if failed > 0 then return 'give_up' end
      return complete and 'release' or 'wait'
    end
    if hold.rule == 'any_failed' then
      if failed > 0 then return 'release' end
      return complete and 'give_up' or 'wait'
    end
    if not complete then return 'wait' end
    if hold.rule == 'tolerate' and failed > hold.tolerate then return 'give_up' end
    return 'release'
  end

  local function is_closed(guard)
    local run = load(guard)
    return run ~= nil and (run.f.w == 'e' or run.f.cr ~= nil)
  end

  function judge(rec, source, verdict)
    if rec.f.w ~= 'h' then return end
    -- Thousands of items may arrive at one join in few calls.
    local hold = rec.hold or cmsgpack.unpack(rec.f.hd)
    rec.hold = hold
    rec.arrived = rec.arrived or tonumber(call('SCARD', B .. 'a:' .. rec.id))
    local decision = decide(hold, num(rec, 'nd', 0), rec.arrived, num(rec, 'fn', 0))
    if decision == 'wait' then return end
    if decision == 'give_up' then
      local cause = hold.rule == 'any_failed' and 'none of the jobs it waited for has failed'
        or 'job ' .. source .. ' arrived ' .. verdict
      end_job(rec, hold.otherwise, {error = error_of('skipped', cause)})
    elseif rec.f.g and is_closed(rec.f.g) then
      end_job(rec, 'REVOKED', {error = E.REVOKED})
    elseif hold.finish then
      end_job(rec, 'SUCCEEDED', {})
    else
      take_out(rec)
      set(rec, 's', 'QUEUED')
      local delay = num(rec, 'dl', nil)
      put_due(rec, delay and now + delay or num(rec, 'et', nil))
    end
  end
  E.judge = judge

  -- `again`: the set of those who have arrived was lost; `is_current`: the source is known to be in this series.
  local function arrive(to, source, series, verdict, again, is_current)
    local rec = load(to)
    if not rec or not rec.f.hd then return end
    local origin = not is_current and load(source)
    if origin and num(origin, 'sr', 1) > series then return end
    if tonumber(call('SADD', B .. 'a:' .. to, source)) == 0 then return end
    if rec.arrived then rec.arrived = rec.arrived + 1 end
    if verdict ~= 'ok' and not (again and call('SISMEMBER', B .. 'af:' .. to, source) == 1) then
      put('SADD', B .. 'af:' .. to, source)
      -- Counted in the record: no join may forget that one of its jobs has failed.
      set(rec, 'fn', num(rec, 'fn', 0) + 1)
    end
    if rec.f.w == 'h' then judge(rec, source, verdict) end
  end

  -- Without recursion: an end may cause arrivals, which may cause ends.
  function propagate()
    if propagating then return end
    propagating = true
    local i = 1
    while arrivals[i] do
      arrive(unpack(arrivals[i], 1, 6))
      i = i + 1
    end
    arrivals, propagating = {}, false
  end

  function E.arrive(to, source, series, verdict, again)
    arrivals[#arrivals + 1] = {to, source, series, verdict, again}
    propagate()
  end

  -- What follows when settle_plain.lua has ended a step: it had no series but the first, and has succeeded.
  function E.step_ended(id, ttl, successors, run)
    local rec = {id = id, f = {jt = ttl, ru = run, fa = now_text}}
    retain(rec)
    if rec.expire_at then put('PEXPIREAT', B .. 'j:' .. id, int(rec.expire_at / 1000)) end
    for _, edge in ipairs(successors and cmsgpack.unpack(successors) or {}) do
      arrivals[#arrivals + 1] = {edge[1], id, 1, 'ok', false, true}
    end
    propagate()
  end

  -- Completion ------------------------------------------------------------------------------------

  -- done: {blob, state, retryable, result, error blob, reason}. False when a worker has to decide.
  function E.complete(rec, done)
    if rec.f.r then set(rec, 'cp', rec.f.r .. done[1]) end
    if rec.f.w ~= '-' then take_out(rec) end
    if done[2] == 'SUCCEEDED' then
      end_job(rec, 'SUCCEEDED', {result = done[4] or nil, winner = true})
    elseif done[3] and not rec.f.ak then
      set(rec, 'oc', done[1])
      set(rec, 'kp', nil)
      set(rec, 's', 'QUEUED')
      -- The delivery that parked did its work; the one that decides takes its number.
      set(rec, 'd', num(rec, 'd', 1) - 1)
      set(rec, 'du', nil)
      put_ready(rec)
      return false
    else
      local err = done[5] and {done[5], done[6]} or error_of('exception', 'failed by its completion')
      E.bury(rec, err, true)
    end
    return true
  end

  return E
end
