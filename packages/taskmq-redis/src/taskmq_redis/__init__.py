"""taskmq on Redis: the transport and the result store of `redis://` URLs."""

from taskmq_redis.results import RedisResultStore
from taskmq_redis.transport import RedisTransport

__all__ = ["RedisResultStore", "RedisTransport"]
