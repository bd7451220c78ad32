"""From a URL (or an instance) to a transport or a result store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from taskmq.errors import ConfigError
from taskmq.transport.url import TransportURL, mask_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.plugins import Plugins
    from taskmq.transport.contract import ResultStore, Transport


def open_result_store(
    url_or_store: str | ResultStore, plugins: Plugins, timeout: float = 5.0
) -> ResultStore:
    """Return the instance given, or make one from its URL; nothing connects yet.

    Raises:
        ConfigError: No plugin brings the scheme, or the URL is not right for it.
    """
    if not isinstance(url_or_store, str):
        return url_or_store
    return cast("ResultStore", _make("results", url_or_store, plugins, timeout, "put"))


def open_transport(
    url_or_transport: str | Transport, plugins: Plugins, timeout: float = 5.0
) -> Transport:
    """Return the instance given, or make one from its URL; nothing connects yet.

    Args:
        url_or_transport: `Config.transport`.
        plugins: Where the URL's scheme is looked up.
        timeout: How long a call may wait for the backend, in seconds.

    Raises:
        ConfigError: No plugin brings the scheme, or the URL is not right for it.
    """
    if not isinstance(url_or_transport, str):
        return url_or_transport
    return cast("Transport", _make("transports", url_or_transport, plugins, timeout, "reserve"))


def _make(kind: str, url: str, plugins: Plugins, timeout: float, method: str) -> object:
    factory: Callable[..., object] = plugins.resolve(kind, TransportURL.parse(url).scheme)
    # Anything callable may be registered; a class of ours is made by from_url.
    from_url: Any = getattr(factory, "from_url", None)
    made: object = from_url(url, timeout=timeout) if from_url is not None else factory(url)
    if not hasattr(made, method):
        raise ConfigError(
            f"the plugin for {mask_url(url)!r} made a {type(made).__name__}, which has no {method}()"
        )
    return made
