-- Storing messages: {id, task, queue, priority, envelope, job_ttl, rare}; `rare` is a table or nil.
-- `rare.pl` says that it has nothing but what a plain record may have beside (STEP).
local STEP = {'su', 'g', 'ru', 'sp'}
local RARE = {'k', 'kt', 'ks', 'c', 'cl', 'ls', 'md', 'my', 'hd', 'su', 'g', 'ru', 'sp', 'xt'}

local function admit(messages, answers)
  local ids, ready, created, unheld = {}, {}, 0, nil
  if prefetch then soon(messages, first_of) end
  local last = numbers(#messages)
  for i, m in ipairs(messages) do
    local id, q, p, rare = m[1], m[3], m[4], m[7]
    local key = B .. 'j:' .. id
    local owner
    if call('EXISTS', key) == 1 then
      answers[#answers + 1] = {id, 'exists'}
    elseif rare and rare.k then
      owner = endings().key_owner(rare.k)
      if owner then answers[#answers + 1] = {owner, 'duplicate'} end
    end
    if #answers < i then
      local n = last + i
      if not rare or rare.pl then
        local words = {'b', packed(m, n), 'e', m[5]}
        for _, field in ipairs(rare and STEP or {}) do
          if rare[field] then
            words[#words + 1] = field
            words[#words + 1] = rare[field]
          end
        end
        put('HSET', key, unpack(words))
        local line = ready[q]
        if not line then line = {best = 99, words = {}}; ready[q] = line end
        line.words[#line.words + 1] = score(p, n)
        line.words[#line.words + 1] = id
        if 9 - p < line.best then line.best = 9 - p end
      else
        local E = endings()
        local rec = E.fresh(id, {p = p, n = int(n), q = q})
        for field, value in pairs({t = m[2], q = q, p = p, e = m[5], n = int(n), at = now_text, jt = m[6]}) do
          E.set(rec, field, value)
        end
        for _, field in ipairs(RARE) do
          local value = rare[field]
          if value ~= nil then E.set(rec, field, value == true and '1' or value) end
        end
        E.set(rec, 's', 'QUEUED')
        E.set(rec, 'w', '-')
        if rare.k then E.hold_key(rec) end
        if rare.ex then
          E.set(rec, 'ex', int(now + rare.ex))
          put('ZADD', B .. 'ex', rec.f.ex, id)
        end
        local due = rare.de and now + rare.de or rare.eta
        if rare.hd then
          E.set(rec, 'nd', rare.nd)
          if rare.de then E.set(rec, 'dl', int(rare.de)) end
          if rare.eta then E.set(rec, 'et', int(rare.eta)) end
          E.put_held(rec)
          if rare.nd <= 0 then
            unheld = unheld or {}
            unheld[#unheld + 1] = rec
          end
        else
          E.put_due(rec, due)
        end
        put('SADD', B .. 'qs', q)
      end
      ids[#ids + 1] = '0'
      ids[#ids + 1] = id
      answers[#answers + 1] = {id, 'created'}
      created = created + 1
    end
  end
  many('ZADD', B .. 'ids', ids)
  for q, line in pairs(ready) do
    many('ZADD', B .. 'r:' .. q, line.words)
    local band = call('ZSCORE', B .. 'liver', q)
    if not band or tonumber(band) > line.best then
      put('ZADD', B .. 'liver', line.best, q)
      put('SADD', B .. 'qs', q)
    end
    wake(q, #line.words / 2)
  end
  -- Holds that wait for nobody are decided once all are stored.
  for _, rec in ipairs(unheld or {}) do endings().judge(rec, '', 'ok') end
end
