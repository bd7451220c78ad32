-- {worker, names, weights, limit, lease, credits, max_priority, tokens}: leases the best messages.
-- Here the usual call: nothing has fallen due, nothing is at its last chance, one queue has the best band, and
-- what comes first there is plain. The rest of the script is built for the others only.
local worker, names, limit, tokens = A[1], A[2], A[4], A[8]
local n = #names
local floor = A[7] and 9 - A[7] or 0
local until_text = int(now + A[5])
local NEVER = '00000000000000000000000000000000'
local bands, due, has_last, cancelled = survey(worker, names)
local is_simple = floor == 0 and not has_last and not (due and due <= now)
local out, used, leases = {}, 0, {}

-- What `v` of a plain record says about the place of a delivery; core.lua has the whole.
local function place_of(q, band) return string.format('%02d%05d', band, #q) .. q .. worker end

-- f: b, e, v, ru, sp of a plain record that is ready.
local function lease_plain(i, id, f, place)
  local token = tokens[used + 1]
  put('HSET', B .. 'j:' .. id, 'v', 'l' .. token .. sub(f[1], 1, 16) .. NEVER .. now_text .. place)
  leases[#leases + 1] = until_text
  leases[#leases + 1] = id
  used = used + 1
  local row = {id, i - 1, f[2], token, f[1]}
  if f[4] or f[5] then row[6], row[7] = f[4] or '', f[5] or '' end
  out[used] = row
end

-- The only queue that has the best band; false for several, nil for none.
local function only_best()
  local best, at
  for i = 1, n do
    local band = bands[i]
    if band then
      if not best or band < best then
        best, at = band, i
      elseif band == best then
        at = false
      end
    end
  end
  return at, best
end

local function take_plain(i, band)
  local q, wanted, taken = names[i], limit - used, {}
  local line, place = B .. 'r:' .. q, place_of(q, band)
  local ids = call('ZRANGEBYSCORE', line, int(band * SHIFT), '(' .. int((band + 1) * SHIFT), 'LIMIT', 0, wanted + 1)
  if prefetch then soon(ids, itself) end
  for j = 1, math.min(wanted, #ids) do
    local id = ids[j]
    local f = call('HMGET', B .. 'j:' .. id, 'b', 'e', 'v', 'ru', 'sp')
    if not f[1] or f[3] then
      is_simple = false
      break
    end
    lease_plain(i, id, f, place)
    taken[j] = id
  end
  many('ZREM', line, taken)
  if #taken > 0 then call('HINCRBY', B .. 'n:' .. q, 'l' .. int(9 - band), #taken) end
  if #taken < #ids then return end
  -- The band is used up, or the index named one that is not there.
  local score = call('ZRANGE', line, 0, 0, 'WITHSCORES')[2]
  local next_band = score and math.floor(score / SHIFT) or nil
  if next_band == band then return end
  bands[i] = next_band
  if next_band then put('ZADD', B .. 'liver', next_band, q) else put('ZREM', B .. 'liver', q) end
end

local function next_due()
  local first = best_of(look('due', names, {}), n)
  return first and int(math.max(first - now, 0)) or ''
end

-- Nothing is left, so nobody needs to be woken for it.
local function forget_tokens()
  if limit == 0 or n > 100 then return end
  local lists = {}
  for i = 1, n do lists[i] = B .. 't:' .. names[i] end
  put('DEL', unpack(lists))
end

while is_simple and used < limit do
  local i, band = only_best()
  if not i then
    is_simple = i == nil
    break
  end
  take_plain(i, band)
end
many('ZADD', B .. 'le', leases)
if is_simple then
  local head = best_of(bands, n)
  if not head then forget_tokens() end
  return {now_text, head and 9 - head or '', cancelled, out, due and next_due() or '', 0, 0}
end
leases = {}
