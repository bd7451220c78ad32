-- What every script begins with: arguments, time, and a look at what all workers ask for. See
-- docs/adr/0007-redis.md. What few calls need stands in the parts after it: building a function costs.
local B = KEYS[1]
local call = redis.call
-- In the client (no Lua on the server) a write whose answer nobody reads costs no look at the server,
-- and records that will be read are fetched at once.
local put, prefetch = redis.put or redis.call, redis.prefetch
local A = cmsgpack.unpack(ARGV[1])
local sub = string.sub
-- Times and durations are whole microseconds: the server reads and compares whole numbers far faster
-- than fractions.
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A score is a band and a place in it: (9 - priority) * 2^43 + place, exact in a double.
local SHIFT = 8796093022208
-- In the client the C type long may have 32 bits, too few for the quicker format.
local WHOLE, WIDE = '%d', '%016d'
if redis.put then WHOLE, WIDE = '%.0f', '%016.0f' end
local function int(x) return string.format(WHOLE, x) end
local function wide(x) return string.format(WIDE, x) end
local now_text = wide(now)

-- Calls a command with many arguments in portions that Lua can unpack.
local function many(name, key, words)
  local n = #words
  if n == 0 then return end
  for i = 1, n, 1000 do put(name, key, unpack(words, i, math.min(i + 999, n))) end
end

local function first_of(item) return item[1] end
local function itself(id) return id end

-- The records of some items will be read: `pick` gives the id of each.
local function soon(items, pick)
  local keys = {}
  for i, item in ipairs(items) do keys[i] = B .. 'j:' .. pick(item) end
  prefetch(keys)
end

-- What an index says of these queues, and of some marks beside them, which no queue is named like.
local function look(index, names, extra)
  local n, bands, from = #names, {}, 1
  for j, name in ipairs(extra) do names[n + j] = name end
  local last = n + #extra
  for i = 1, last, 1000 do
    local found = call('ZMSCORE', B .. index, unpack(names, i, math.min(i + 999, last)))
    for j = 1, #found do
      local score = found[j]
      if score then bands[i + j - 1] = tonumber(score) end
    end
  end
  local others = {}
  for j = 1, #extra do
    others[j], bands[n + j], names[n + j] = bands[n + j], nil, nil
  end
  return bands, others
end

-- Beside the bands: when something falls due, whether something is at its last chance, and the receipts
-- of this worker that are cancelled (2 means: by force).
local function survey(worker, names)
  local mark = '\0c' .. worker
  local bands, others = look('liver', names, {'\0due', '\0last', mark})
  local cancelled = {}
  if others[3] then
    cancelled = call('HGETALL', B .. 'cn:' .. worker)
    if #cancelled == 0 then put('ZREM', B .. 'liver', mark) end
  end
  return bands, others[1], others[2], cancelled
end

local function best_of(bands, n)
  local best
  for i = 1, n do
    local band = bands[i]
    if band and (not best or band < best) then best = band end
  end
  return best
end

-- A worker holds at most one delivery at its last chance.
local function may_take_last(worker) return call('SCARD', B .. 'wl:' .. worker) == 0 end

-- What a worker is told with every reply: the time, its head, and its cancelled receipts.
local function news(worker, names)
  local n = #names
  local bands, _, has_last, cancelled = survey(worker, names)
  local best = best_of(bands, n)
  if has_last and n > 0 and may_take_last(worker) then
    local other = best_of(look('livel', names, {}), n)
    if other and (not best or other < best) then best = other end
  end
  return {now_text, best and 9 - best or '', cancelled}
end
