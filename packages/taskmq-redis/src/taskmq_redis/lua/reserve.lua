-- What reserve_plain.lua leaves: promotion, last chances, round-robin, and records that are not plain.
local weights, lease, credits = A[3], A[5], A[6]
local PROMOTE = 500
local budget = 1000

-- What has fallen due is moved to its place, whoever serves its queue.
local function promote()
  local left = PROMOTE
  while left > 0 do
    local due = call('ZRANGEBYSCORE', B .. 'due', '-inf', now_text, 'LIMIT', 0, 20)
    if #due == 0 then
      refresh_due({})
      return false
    end
    local E = endings()
    for _, q in ipairs(due) do
      local ids = call('ZRANGEBYSCORE', B .. 'd:' .. q, '-inf', now_text, 'LIMIT', 0, math.max(left, 1))
      for _, id in ipairs(ids) do
        local rec = E.load(id)
        if rec and rec.f.w == 'd' then
          put('ZREM', B .. 'd:' .. q, id)
          count(q, 'd' .. rec.p, -1)
          E.put_ready(rec)
        else
          put('ZREM', B .. 'd:' .. q, id)
          if not rec then E.lose(id, q) end
        end
      end
      left = left - math.max(#ids, 1)
    end
    local moved = {}
    for _, q in ipairs(due) do moved[q] = true end
    refresh_due(moved)
  end
  return true
end

local work_left = false
if due and due <= now then
  work_left = promote()
  if built then built.save() end
  for q, kinds in pairs(lines) do
    for kind in pairs(kinds) do refresh(kind, q) end
  end
  lines = {}
  bands, due, has_last = survey(worker, names)
end

local with_last = has_last and may_take_last(worker)
bands = {r = bands, l = with_last and look('livel', names, {}) or {}}

-- What is more urgent than asked for stays where it is, so the best below it is looked up.
local function allowed(kind, i)
  local band = bands[kind][i]
  if not band or band >= floor then return band end
  local first = call(
    'ZRANGEBYSCORE', B .. kind .. ':' .. names[i], int(floor * SHIFT), '+inf', 'WITHSCORES', 'LIMIT', 0, 1
  )
  return first[2] and band_of(first[2])
end

local function best_for(i)
  local a, b = allowed('r', i), with_last and allowed('l', i)
  if a and b then return math.min(a, b) end
  return a or b
end

-- Leases one message that is ready in queue i; false when it was moved aside instead.
local taken = {}
local function lease_one(i, kind, id, s)
  local q = names[i]
  local gone = taken[i]
  if not gone then gone = {r = {}, l = {}}; taken[i] = gone end
  gone[kind][#gone[kind] + 1] = id
  if not (built and built.known(id)) then
    local f = call('HMGET', B .. 'j:' .. id, 'b', 'e', 'v', 'ru', 'sp')
    if f[1] and not f[3] then
      local band = band_of(s)
      lease_plain(i, id, f, place_of(q, band))
      count(q, 'l' .. int(9 - band), 1)
      return true
    end
  end
  local E = endings()
  local rec = E.load(id)
  if not rec or rec.f.w ~= 'r' then
    if not rec then E.lose(id, q, 9 - band_of(s)) end
    budget = budget - 1
    return false
  end
  local token = tokens[used + 1]
  E.set(rec, 'w', '-')
  if rec.f.ex and tonumber(rec.f.ex) <= now and not rec.f.oc then
    E.end_job(rec, 'EXPIRED', {error = E.error_of('expired')})
    budget = budget - 1
    return false
  end
  if rec.f.c and not rec.f.sl and not E.take_slot(rec) then
    budget = budget - 1
    return false
  end
  local time = E.num(rec, 'ls', lease)
  E.set(rec, 'r', token)
  E.set(rec, 'd', E.num(rec, 'd', 0) + 1)
  E.set(rec, 'ra', now_text)
  for _, field in ipairs({'sa', 'du', 'pr', 'kp', 'lt'}) do
    if rec.f[field] then E.set(rec, field, nil) end
  end
  E.put_leased(rec, worker, time)
  if rec.f.ex then put('ZREM', B .. 'ex', id) end
  if rec.f.k and rec.f.ks == 'until_start' then E.free_key(rec) end
  if rec.f.cr then tell_cancelled(worker, token .. '-' .. id, rec.f.cr) end
  used = used + 1
  local g = rec.f
  out[used] = {
    id, g.t, i - 1, rec.p, g.e, token, g.a or 1, g.d, g.at,
    int(time), g.md or '', g.y or '', g.sr or '', g.ex or '', g.cr or '', g.m or '', g.oc or '',
    g.ru or '', g.sp or '',
  }
  if with_last and E.num(rec, 'd', 0) > 1 and E.num(rec, 'd', 0) >= E.num(rec, 'md', 5) then
    -- One delivery at its last chance is all that a worker may hold.
    with_last = false
  end
  return true
end

-- The ids of a queue's band that come next, those at their last chance among them in their place.
local function line_of(i, band, size)
  local low, high = int(band * SHIFT), '(' .. int((band + 1) * SHIFT)
  local found = {}
  for _, kind in ipairs(with_last and {'r', 'l'} or {'r'}) do
    if allowed(kind, i) == band then
      local flat = call(
        'ZRANGEBYSCORE', B .. kind .. ':' .. names[i], low, high, 'WITHSCORES', 'LIMIT', 0, size
      )
      for j = 1, #flat, 2 do found[#found + 1] = {flat[j], flat[j + 1], kind} end
    end
  end
  if prefetch then soon(found, first_of) end
  if with_last and #found > 1 then
    table.sort(found, function(a, b) return tonumber(a[2]) < tonumber(b[2]) end)
  end
  return found
end

-- Removes what was taken from the lines, and looks where their heads are now.
local function settle_lines()
  for i, gone in pairs(taken) do
    for kind, ids in pairs(gone) do
      if #ids > 0 then
        many('ZREM', B .. kind .. ':' .. names[i], ids)
        touch(kind, names[i])
      end
    end
  end
  taken = {}
  if built then built.save() end
  -- What an end released or a full key moved may have changed other lines as well.
  local index = {}
  for i = 1, n do index[names[i]] = i end
  for q, kinds in pairs(lines) do
    for kind in pairs(kinds) do
      local at = index[q]
      local band = refresh(kind, q, at and bands[kind][at])
      if at then bands[kind][at] = band or nil end
    end
  end
  lines = {}
end

-- Smooth weighted round-robin: the richest is next and pays what all have earned.
local function round_robin(candidates, band)
  local fetched, size, at, sum = {}, {}, {}, 0
  if #candidates > limit then
    table.sort(candidates, function(a, b)
      local x, y = credits[names[a]] or 0, credits[names[b]] or 0
      if x ~= y then return x > y end
      return a < b
    end)
    for j = #candidates, limit + 1, -1 do
      -- Not visited now, so first in line next time.
      local q = names[candidates[j]]
      credits[q] = (credits[q] or 0) + weights[candidates[j]]
      candidates[j] = nil
    end
  end
  for _, i in ipairs(candidates) do sum = sum + weights[i] end
  for _, i in ipairs(candidates) do
    -- Twice its share, since it may have saved up credits; who has more comes back for it.
    size[i] = math.min(limit - used, 2 * math.ceil((limit - used) * weights[i] / sum) + 1)
    fetched[i] = line_of(i, band, size[i])
    at[i] = 1
  end
  while used < limit and budget > 0 do
    local best, most
    sum = 0
    for _, i in ipairs(candidates) do
      if fetched[i][at[i]] then
        local rich = (credits[names[i]] or 0) + weights[i]
        sum = sum + weights[i]
        if not best or rich > most then best, most = i, rich end
      elseif at[i] > size[i] then
        return
      end
    end
    if not best then return end
    local entry = fetched[best][at[best]]
    at[best] = at[best] + 1
    if entry[3] == 'r' or with_last then
      if lease_one(best, entry[3], entry[1], entry[2]) then
        for _, i in ipairs(candidates) do
          if fetched[i][at[i]] or i == best then
            credits[names[i]] = (credits[names[i]] or 0) + weights[i]
          end
        end
        credits[names[best]] = credits[names[best]] - sum
      end
    end
  end
end

while used < limit and budget > 0 do
  local band
  for i = 1, n do
    local b = best_for(i)
    if b and (not band or b < band) then band = b end
  end
  if not band then break end
  local candidates = {}
  for i = 1, n do
    if allowed('r', i) == band or (with_last and allowed('l', i) == band) then candidates[#candidates + 1] = i end
  end
  local before_used, before_budget = used, budget
  if #candidates == 1 then
    local i = candidates[1]
    for _, entry in ipairs(line_of(i, band, limit - used)) do
      -- The line holds as many of each kind as there is room for.
      if budget <= 0 or used >= limit then break end
      if entry[3] == 'r' or with_last then lease_one(i, entry[3], entry[1], entry[2]) end
    end
  else
    round_robin(candidates, band)
  end
  settle_lines()
  if used == before_used and budget == before_budget then break end
end

many('ZADD', B .. 'le', leases)
if built then built.save() end
local delayed = due or next(dues)
flush()

floor = 0
local head
for i = 1, n do
  local band = best_for(i)
  if band and (not head or band < head) then head = band end
end
if not head then forget_tokens() end
local shares = {}
for q, value in pairs(credits) do
  shares[#shares + 1] = q
  shares[#shares + 1] = tostring(value)
end
return {
  now_text, head and 9 - head or '', call('HGETALL', B .. 'cn:' .. worker), out,
  delayed and next_due() or '', (budget <= 0 or work_left) and limit > 0 and 1 or 0, shares,
}
