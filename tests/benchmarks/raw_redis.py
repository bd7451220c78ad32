"""The raw limit of Redis: redis-py with hiredis, one script a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

ENQUEUE = """
local base, now = KEYS[1], redis.call('TIME')[1]
local place = redis.call('INCRBY', base .. 'seq', #ARGV / 2) - #ARGV / 2
local ready = {}
for i = 1, #ARGV, 2 do
  redis.call('HSET', base .. 'j:' .. ARGV[i],
    't', 'noop', 'q', 'bench', 'p', '0', 's', 'QUEUED', 'e', ARGV[i + 1], 'at', now, 'ttl', '86400')
  place = place + 1
  ready[#ready + 1] = place
  ready[#ready + 1] = ARGV[i]
end
redis.call('ZADD', base .. 'ready', unpack(ready))
"""
CLAIM = """
local base, now = KEYS[1], redis.call('TIME')[1]
local ids = redis.call('ZRANGE', base .. 'ready', 0, ARGV[2] - 1)
local leases, found = {}, {}
for i, id in ipairs(ids) do
  local key = base .. 'j:' .. id
  local job = redis.call('HMGET', key, 't', 'p', 'e', 'at')
  redis.call('HSET', key, 's', 'RUNNING', 'wk', ARGV[1], 'ra', now, 'd', '1')
  leases[#leases + 1] = now + 60
  leases[#leases + 1] = id
  found[i] = {id, job[1], job[2], job[3], job[4]}
end
if #ids > 0 then
  redis.call('ZREM', base .. 'ready', unpack(ids))
  redis.call('ZADD', base .. 'leases', unpack(leases))
end
return found
"""
FINISH = """
local base, now = KEYS[1], redis.call('TIME')[1]
local ids = {}
for i = 1, #ARGV, 2 do
  local key = base .. 'j:' .. ARGV[i]
  redis.call('HSET', key, 's', 'SUCCEEDED', 'fa', now, 'rs', ARGV[i + 1])
  redis.call('EXPIRE', key, 86400)
  ids[#ids + 1] = ARGV[i]
end
redis.call('ZREM', base .. 'leases', unpack(ids))
"""


class RawRedis:
    """A sorted set of what is ready, one of leases, a hash a job."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        load: Any = self.client.script_load
        self.scripts: dict[str, str] = {
            "enqueue": load(ENQUEUE),
            "claim": load(CLAIM),
            "finish": load(FINISH),
        }

    def call(self, script: str, *words: bytes | str | int) -> Any:
        client: Any = self.client
        return client.execute_command("EVALSHA", self.scripts[script], 1, "raw:", *words)

    def enqueue_one(self, job: tuple[str, bytes]) -> None:
        self.call("enqueue", job[0], job[1])

    def enqueue(self, jobs: Sequence[tuple[str, bytes]]) -> None:
        self.call("enqueue", *[word for job in jobs for word in job])

    def claim(self, limit: int) -> Sequence[Any]:
        rows: Sequence[Any] = self.call("claim", "w", limit)
        return rows

    def finish(self, claimed: Sequence[Any], result: bytes) -> None:
        self.call("finish", *[word for row in claimed for word in (row[0], result)])

    def close(self) -> None:
        self.client.close()
