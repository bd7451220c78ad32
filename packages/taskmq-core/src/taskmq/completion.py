"""Completions over HTTP: a WSGI app whose URLs can be given to a service as callbacks.

```python
from wsgiref.simple_server import make_server
make_server("", 8080, wsgi_app(app)).serve_forever()
```

A parked job's URL is `callback_url("https://me.example/done", token)`. The token is the authorisation:
whoever has it may complete this one delivery, once. Serve it over HTTPS, and keep it out of logs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from taskmq._internal.guards import is_dict
from taskmq.errors import (
    EncodeError,
    MessageTooLarge,
    TaskmqError,
    TransportError,
    TransportUnavailable,
)
from taskmq.transport.contract import parse_completion_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from taskmq.app import App

_KEYS = frozenset({"error", "result", "retryable"})


class _Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def callback_url(base: str, token: str) -> str:
    """The URL that completes a delivery, where `wsgi_app` is served at `base`."""
    return f"{base.rstrip('/')}/{quote(token, safe='')}"


def wsgi_app(
    app: App,
) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """A WSGI application that completes parked jobs: `POST /<token>`.

    The body is JSON: `{"result": …}`, or `{"error": "why", "retryable": true}`. An empty body completes
    with None. Answers are JSON too: 200 with `status` ok, already, kept (it came before the park) or
    handed (a worker decides about a retry); 409 when another outcome was there before, or the token is
    of an earlier attempt; 400, 404, 405, 411 and 413 for what is no completion; 503 to come again later.
    """

    def serve(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            answer = _complete(app, environ)
            status, headers = "200 OK", dict[str, str]()
        except _Refused as refusal:
            status, headers, answer = refusal.status, dict(refusal.headers), {"error": str(refusal)}
        body = json.dumps(answer).encode()
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        start_response(status, list(headers.items()))
        return [body]

    return serve


def _complete(app: App, environ: Mapping[str, Any]) -> dict[str, Any]:
    if environ.get("REQUEST_METHOD") != "POST":
        raise _Refused("405 Method Not Allowed", "completions are posted", {"Allow": "POST"})
    token = _token(environ)
    told = _body(app, environ)
    try:
        if "error" in told:
            result = app.fail(token, told["error"], retryable=told.get("retryable", False))
        else:
            result = app.complete(token, told.get("result"))
    except TransportUnavailable as error:
        raise _Refused("503 Service Unavailable", str(error), {"Retry-After": "5"}) from error
    except TransportError as error:
        raise _Refused("409 Conflict", str(error)) from error
    except MessageTooLarge as error:
        raise _Refused("413 Content Too Large", str(error)) from error
    except (EncodeError, TaskmqError) as error:
        raise _Refused("400 Bad Request", str(error)) from error
    return {"status": result.status}


def _token(environ: Mapping[str, Any]) -> str:
    try:
        # WSGI hands over the unquoted path as Latin-1.
        token = str(environ.get("PATH_INFO", "")).encode("latin-1").decode()[1:]
        parse_completion_token(token)
    except (UnicodeError, TransportError):
        raise _Refused("404 Not Found", "the path is no completion token") from None
    return token


def _body(app: App, environ: Mapping[str, Any]) -> dict[str, Any]:
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        raise _Refused("400 Bad Request", "Content-Length is no number") from None
    if environ.get("HTTP_TRANSFER_ENCODING"):
        raise _Refused("411 Length Required", "send a Content-Length")
    if not 0 <= length <= app.config.max_message_bytes:
        limit = app.config.max_message_bytes
        raise _Refused("413 Content Too Large", f"the limit is {limit} bytes")
    data = environ["wsgi.input"].read(length) if length else b""
    if not data.strip():
        return {}
    try:
        told: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Refused("400 Bad Request", f"the body is no JSON: {error}") from None
    if not is_dict(told) or not told.keys() <= _KEYS or {"error", "result"} <= told.keys():
        raise _Refused(
            "400 Bad Request",
            'the body is {"result": …}, or {"error": "why", "retryable": true or false}',
        )
    if not isinstance(told.get("error", ""), str) or not isinstance(
        told.get("retryable", False), bool
    ):
        raise _Refused("400 Bad Request", "error is a text, retryable true or false")
    return told
