-- {id, task, queue, priority, envelope, job_ttl}: one plain message, the most common call, without the parts
-- that the others share: building these costs as much as all this does. Must do what admit.lua does.
local B, call = KEYS[1], redis.call
local put = redis.put or call
local m = cmsgpack.unpack(ARGV[1])
local id, q, band = m[1], m[3], 9 - m[4]
local key = B .. 'j:' .. id
if call('EXISTS', key) == 1 then return 'exists' end
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local last, least = call('INCRBY', B .. 'seq', 1), math.floor(now / 1000)
if last < least then
  last = least + 1
  put('SET', B .. 'seq', string.format('%.0f', last))
end
put('HSET', key, 'e', m[5], 'b',
  string.format('%016.0f%016.0f%016.0f%02d%05d', m[6], now, last, band, #q) .. q .. m[2])
put('ZADD', B .. 'ids', 0, id)
put('ZADD', B .. 'r:' .. q, string.format('%.0f', band * 8796093022208 + last), id)
local live = call('ZMSCORE', B .. 'liver', q, '\0many')
if not live[1] or tonumber(live[1]) > band then
  put('ZADD', B .. 'liver', band, q)
  put('SADD', B .. 'qs', q)
end
local function push(list)
  local standing = call('LLEN', list)
  if standing < 16 then
    put('RPUSH', list, '1')
    if standing == 0 then put('PEXPIRE', list, 3600000) end
  end
end
push(B .. 't:' .. q)
if live[2] and tonumber(live[2]) > now then push(B .. 'tany') end
return 'created'
