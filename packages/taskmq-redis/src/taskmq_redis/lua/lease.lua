-- {what, name, owner or token, ttl}: named leases; the token, or 0.
local what, key, who = A[1], B .. 'nl:' .. A[2], A[3]
local f = call('HMGET', key, 'o', 't', 'u')
local live = f[1] and tonumber(f[3]) > now
if what == 'release' then
  if f[2] ~= int(who) then return '0' end
  put('DEL', key)
  return live and '1' or '0'
end
local token
if what == 'acquire' then
  if live and f[1] ~= who then return '0' end
  token = live and f[2] or int(numbers(1) + 1)
else
  if not live or f[2] ~= int(who) then return '0' end
  token, who = f[2], f[1]
end
put('HSET', key, 'o', who, 't', token, 'u', int(now + A[4]))
put('PEXPIREAT', key, int((now + A[4]) / 1000))
return token
