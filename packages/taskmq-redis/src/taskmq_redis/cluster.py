"""Redis Cluster: all keys of one prefix share a hash tag, and live on the node that owns its slot.

So every operation stays one atomic step there too, across queues as well; who needs more than one node uses
several prefixes. What follows a resharding or a failover is the search for the slot's owner.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.crc import key_slot
from redis.exceptions import (
    ClusterDownError,
    RedisError,
    ResponseError,
)

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATIENCE: Final = 1.0
"""Seconds that one node gets to tell the owner; there are others to ask."""


def tagged(prefix: str) -> bytes:
    """The base of all keys, as one hash tag; the prefix has no braces of its own left."""
    return b"{" + prefix.encode() + b"}"


class Nodes:
    """Finds the owner of a slot by asking the nodes that are known.

    Args:
        hosts: Those that the URL names.
        base: What all our keys begin with; its tag decides the slot.
        options: How to connect to any of them.
    """

    def __init__(
        self, hosts: Sequence[tuple[str, int]], base: bytes, options: Mapping[str, Any]
    ) -> None:
        self._hosts = list(hosts)
        self._slot: int = key_slot(base)
        self._options = dict(options)

    def owner(self) -> tuple[str, int]:
        """The node that owns the slot now.

        Raises:
            ConfigError: The server is no cluster.
            redis.exceptions.RedisError: No node knows an owner.
        """
        failure: RedisError = ClusterDownError("CLUSTERDOWN no node knows who owns the slot")
        for host, port in random.sample(self._hosts, len(self._hosts)):
            try:
                ranges = self._ask(host, port)
            except ResponseError as error:
                if "cluster support disabled" in str(error):
                    raise ConfigError(
                        f"{host}:{port} is no node of a Redis Cluster: leave out ?cluster=1"
                    ) from None
                failure = error
                continue
            except RedisError as error:
                failure = error
                continue
            found = self._learn(ranges, host)
            if found is not None:
                return found
        raise failure

    def _ask(self, host: str, port: int) -> list[Any]:
        made: Any = redis.Redis
        with made(host=host, port=port, **self._options) as node:
            ranges: list[Any] = node.execute_command("CLUSTER SLOTS")
            return ranges

    def _learn(self, ranges: Any, asked: str) -> tuple[str, int] | None:
        """Remember all nodes that were named; the owner of our slot among them."""
        found = None
        for low, high, *nodes in ranges:
            for position, (host, port, *_) in enumerate(nodes):
                # A node that does not know its own address leaves it empty.
                address = (_text(host) or asked, int(port))
                if address not in self._hosts:
                    self._hosts.append(address)
                if position == 0 and low <= self._slot <= high:
                    found = address
        return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
