"""The Lua scripts run in the client, for servers that forbid `EVAL` (`?lua=off`).

One source of semantics: the very scripts that a server would run are run by an embedded Lua. What they
read goes to the server, what they write is gathered and sent as one `MULTI`/`EXEC`.
"""

from taskmq_redis.embedded.runner import Embedded, Mode

__all__ = ["Embedded", "Mode"]
