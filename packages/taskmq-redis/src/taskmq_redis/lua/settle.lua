-- An item here: {id, token, kind, started_ago, meta, follow_ups, ...} with false for what is not given.
local REMEMBERED = 8

local function has(list, token) return list ~= nil and string.find(list, token, 1, true) ~= nil end

local function follow(E, ups)
  if ups[1] then admit(ups[1], {}) end
  for _, more in ipairs(ups[2] or {}) do
    local rec = E.load(more[1])
    if rec and rec.f.w == 'h' then E.set(rec, 'nd', E.num(rec, 'nd', 0) + more[2]) end
  end
  for _, a in ipairs(ups[3] or {}) do E.arrive(a[1], a[2], a[4], a[3]) end
  for _, f in ipairs(ups[4] or {}) do
    local rec = E.load(f[1])
    if rec and rec.f.w == 'h' then E.end_job(rec, f[2], {result = f[3] or nil, error = f[4] or nil}) end
  end
end

local function remember(E, rec, token)
  local kept = {token}
  for old in string.gmatch(rec.f.sd or '', '%S+') do
    if #kept < REMEMBERED then kept[#kept + 1] = old end
  end
  E.set(rec, 'sd', table.concat(kept, ' '))
end

local function hold_again(E, rec, lease)
  E.take_out(rec)
  E.retake_slot(rec)
  E.put_leased(rec, worker, lease)
end

local ACKS = {SUCCEEDED = true, FAILED = true, REVOKED = true, EXPIRED = true, RUNNING = true}

local function refusal(E, rec, kind, item)
  if kind == 'ack' then
    return not ACKS[item[7]] and "a job can't be acknowledged as " .. item[7]
  end
  if rec.f.ak and (kind == 'retry' or kind == 'defer' or kind == 'yield' or kind == 'release') then
    return 'acknowledged before the work, so it is never delivered again'
  end
  return kind == 'yield' and E.num(rec, 'y', 0) >= E.num(rec, 'my', 100) and 'max yields'
end

local apply = {}

function apply.bury(E, rec, item) E.bury(rec, item[7], true) end

function apply.park(E, rec, item)
  if rec.f.kp then
    E.complete(rec, cmsgpack.unpack(rec.f.kp))
  elseif rec.f.cr then
    E.end_job(rec, 'REVOKED', {error = E.REVOKED, winner = true})
  else
    -- The outside goes on with the work, so its slot stays taken, or is taken again by one late.
    E.retake_slot(rec)
    E.set(rec, 'w', 'p')
    E.set(rec, 's', 'WAITING')
    count(rec.f.q, 'w', 1)
    local timeout = item[7]
    E.set(rec, 'du', timeout and int(now + timeout) or nil)
    if timeout then put('ZADD', B .. 'pk', rec.f.du, rec.id) end
  end
end

local function let_go(E, rec)
  E.set(rec, 'r', nil)
  E.set(rec, 'kp', nil)
  E.set(rec, 's', 'QUEUED')
end

function apply.release(E, rec, item)
  let_go(E, rec)
  local d = E.num(rec, 'd', 0)
  if item[7] then
    if d >= E.num(rec, 'md', 5) then
      E.bury(rec, E.WORKER_LOST)
      return
    end
  else
    E.set(rec, 'd', d - 1)
  end
  E.give_back(rec, nil)
end

function apply.retry(E, rec, item)
  let_go(E, rec)
  E.set(rec, 's', 'RETRYING')
  E.set(rec, 'a', E.num(rec, 'a', 1) + 1)
  E.set(rec, 'd', 0)
  E.set(rec, 'oc', nil)
  local err = item[8]
  E.set(rec, 'er', err and err[1] or nil)
  E.set(rec, 'rn', err and err[2] or nil)
  if item[9] then E.set(rec, 'e', item[9]) end
  E.give_back(rec, now + item[7])
end

function apply.defer(E, rec, item)
  let_go(E, rec)
  E.set(rec, 'd', E.num(rec, 'd', 0) - 1)
  E.set(rec, 'rn', item[8] ~= '' and item[8] or nil)
  E.give_back(rec, now + item[7])
end

apply['yield'] = function(E, rec, item)
  let_go(E, rec)
  E.set(rec, 'd', E.num(rec, 'd', 0) - 1)
  E.set(rec, 'y', E.num(rec, 'y', 0) + 1)
  E.give_back(rec, now + item[7])
end

local function settle(item)
  local E = endings()
  local id, token, kind = item[1], item[2], item[3]
  local rec = E.load(id)
  if not rec then return 'lost' end
  if has(rec.f.sd, token) or (rec.f.w == 'e' and rec.f.r == token) then return 'already' end
  if rec.f.r ~= token or not (rec.f.w == 'l' or rec.f.lt) then
    return 'lost'
  end
  local early = kind == 'ack' and item[7] == 'RUNNING'
  if early and rec.f.ak then return 'already' end
  local why = refusal(E, rec, kind, item)
  if why then return 'refused ' .. why end
  if item[4] then E.set(rec, 'sa', int(now - item[4])) end
  if item[5] then E.set(rec, 'm', item[5]) end
  if early then
    if rec.f.lt then hold_again(E, rec, E.num(rec, 'lv', 60000000)) end
    E.set(rec, 'ak', '1')
    if item[6] then follow(E, item[6]) end
    return 'ok'
  end
  E.take_out(rec)
  E.set(rec, 'lt', nil)
  remember(E, rec, token)
  if item[6] then follow(E, item[6]) end
  if kind == 'ack' then
    E.set(rec, 'rx', item[10] and '1' or nil)
    E.end_job(rec, item[7], {result = item[8], error = item[9], winner = true})
  else
    apply[kind](E, rec, item)
  end
  return 'ok'
end

for _, step in ipairs(steps) do endings().step_ended(unpack(step)) end
for _, i in ipairs(rest) do
  local item = items[i]
  if #item <= 5 then
    item = {item[1], item[2], 'ack', item[4], false, false, 'SUCCEEDED', item[3], false, item[5]}
  end
  results[i] = settle(item)
end
endings().save()
flush()
return {results, news(worker, names)}
