-- {ids, expect, all}: {reason} when refused, else {'', reopened}.
local why, reopened = reopen(A[1], A[2], A[3])
if why then return {why} end
endings().save()
flush()
return {'', reopened}
