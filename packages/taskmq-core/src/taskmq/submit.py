"""From a call of a task to messages: arguments checked, options applied, envelopes encoded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from taskmq._internal import checks
from taskmq.context import option_seconds
from taskmq.errors import ConfigError, EncodeError, MessageTooLarge
from taskmq.handle import TaskHandle
from taskmq.ids import new_id
from taskmq.names import check_key, check_name
from taskmq.policy import TaskPolicy, check_priority, check_timeouts, positive_seconds
from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope
from taskmq.transport.types import KeyScope, Message

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.context import TaskContext
    from taskmq.protocol.codec import Codec
    from taskmq.protocol.convert import SignatureModel

OPTIONS = frozenset(
    {
        "delay",
        "eta",
        "expires",
        "hard_timeout",
        "headers",
        "job_id",
        "key",
        "key_scope",
        "priority",
        "queue",
        "timeout",
    }
)
"""The options of one call, besides the task's arguments."""

CONNECTION = "connection"
"""The option that says where a job is stored rather than what it is."""

BATCH = 1_000
"""How many messages go to the transport in one call."""

_LATEST_ETA = 253_402_300_799.0
_NO_KWARGS: dict[str, Any] = {}


class Caller:
    """Makes the jobs of one task: holds what all of its calls have in common.

    `policy` and `signature` are None for a task whose code is elsewhere. Its envelopes leave the
    number of attempts and the ack mode open (0 and ""), and the worker's own policy fills them in.
    """

    def __init__(
        self,
        app: App,
        task: str,
        policy: TaskPolicy | None = None,
        signature: SignatureModel | None = None,
    ) -> None:
        self._app = app
        self._task = task
        self._policy = policy
        self._signature = signature
        self._codec: Codec | None = None
        config = app.config
        self._limit = config.max_message_bytes
        self._lease = policy.lease if policy else None
        self._hard_timeout = policy.hard_timeout if policy else None
        self._constants: dict[str, Any] = {
            "task": task,
            "lease": self._lease,
            "expires": policy.expires if policy else None,
            "max_deliveries": policy.max_deliveries if policy else config.max_deliveries,
            "max_yields": config.max_yields,
            "job_ttl": config.job_ttl,
            "key_ttl": config.idempotency_ttl,
            "concurrency_limit": policy.concurrency_limit if policy else 1,
        }
        self._plain: tuple[dict[str, Any], Envelope] | None = None

    # --- calls ---

    def call(
        self,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> TaskHandle[Any]:
        """Submit one job."""
        connection, options = _own_connection(options)
        message = self.message(_as_args(args), kwargs, options)
        if connection is not None:
            return self.handle(self._app.enqueue_in(connection, [message])[0].id)
        return self.handle(self._app.enqueue([message])[0].id)

    async def acall(
        self,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> TaskHandle[Any]:
        """Submit one job without blocking the event loop."""
        if self._app.config.eager:
            import asyncio

            # The job runs before the call returns.
            return await asyncio.to_thread(self.call, args, kwargs, options)
        connection, options = _own_connection(options)
        message = self.message(_as_args(args), kwargs, options)
        if connection is not None:
            return self.handle((await self._app.aenqueue_in(connection, [message]))[0].id)
        return self.handle((await self._app.sends.send(message)).id)

    def call_many(
        self, calls: Iterable[Iterable[Any]], options: Mapping[str, Any]
    ) -> list[TaskHandle[Any]]:
        """Submit one job for each tuple of positional arguments."""
        for name in ("key", "job_id"):
            if options.get(name) is not None:
                raise ConfigError(f"map_async can't give one {name} to many jobs: use apply_async")
        connection, others = _own_connection(options)
        # All are encoded before the first is sent: a bad call must not leave half of them queued.
        messages = list(self._messages(calls, others or {}))
        app, signature = self._app, self._signature
        handles: list[TaskHandle[Any]] = []
        for start in range(0, len(messages), BATCH):
            batch = messages[start : start + BATCH]
            stored = app.enqueue(batch) if connection is None else app.enqueue_in(connection, batch)
            handles += [TaskHandle(app, each.id, signature) for each in stored]
        return handles

    def handle(self, job_id: str) -> TaskHandle[Any]:
        """The handle of one of this task's jobs."""
        return TaskHandle(self._app, job_id, self._signature)

    def message(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        parent: TaskContext | None = None,
    ) -> Message:
        """The message of one call; with `parent` a priority that nobody sets is the parent's."""
        fields: dict[str, Any]
        if not options and parent is None:
            fields, envelope = self._plain or self._plan_plain()
            envelope = _copy(envelope)
        else:
            fields, envelope = self._plan(options or {}, parent)
        body = self._encode(args, kwargs)
        # A call without options shares its fields with all others of the task: they stay as they are.
        job_id: str = (fields.pop("id", None) if options else None) or new_id()
        if self._policy is not None and self._policy.concurrency_key is not None:
            key = self._concurrency_key(self._policy.concurrency_key, args, kwargs)
            fields = {**fields, "concurrency_key": key}
            envelope.concurrency_key = key
        envelope.id = job_id
        envelope.body = body
        return Message(id=job_id, envelope=self._seal(envelope), **fields)

    def split(self, mixed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tell the task's keyword arguments from the options of the call."""
        names = set(self._signature.signature.parameters) if self._signature else set[str]()
        kwargs: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in mixed.items():
            is_option = name in OPTIONS or name == CONNECTION
            (options if is_option and name not in names else kwargs)[name] = value
        return kwargs, options

    # --- for steps of workflows ---

    def encode_step(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], filled: Collection[str | int]
    ) -> tuple[str, bytes]:
        """Encode the arguments of a call of which others are `filled` in later, by name or position.

        Raises:
            TypeError: All together don't fit the task's signature.
            EncodeError: An argument can't travel.
        """
        codec = self._codec or self._find_codec()
        signature = self._signature
        if signature is not None:
            self.check_step(args, kwargs, filled)
            if filled:
                signature = signature.partial()
        return codec.content_type, self._app.codecs.encode_call(args, kwargs, codec, signature)

    def check_step(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], filled: Collection[str | int]
    ) -> None:
        """Refuse arguments that, with others `filled` in by name or position, are no call of the task.

        Raises:
            TypeError: They don't fit its signature.
        """
        if self._signature is None:
            return
        positions = [each for each in filled if isinstance(each, int)]
        missing = max(positions, default=-1) + 1 - len(args)
        names = {each: None for each in filled if isinstance(each, str)}
        self._signature.bind((*args, *(None for _ in range(missing))), {**kwargs, **names})

    def encode_checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, bytes]:
        """Encode the arguments of a call whose names and number `check_step` has let pass.

        Raises:
            EncodeError: An argument can't travel.
        """
        codec = self._codec or self._find_codec()
        encoded = self._app.codecs.encode_call(args, kwargs, codec, self._signature)
        return codec.content_type, encoded

    def step_template(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], Envelope]:
        """What the messages of a step have in common: the fields of the message, and the envelope."""
        fields, envelope = self._plan(options, None)
        fields.pop("id", None)
        return fields, envelope

    def step_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The concurrency key of a call, as far as its static arguments make it; None without one."""
        template = self._policy.concurrency_key if self._policy else None
        if template is None or self._signature is None:
            return None
        bound = self._signature.signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        return self._fill_key(template, dict(bound.arguments))

    def seal(self, envelope: Envelope) -> bytes:
        """Encode an envelope.

        Raises:
            MessageTooLarge: It is over `Config.max_message_bytes`.
        """
        return self._seal(envelope)

    # --- parts ---

    def _messages(
        self, calls: Iterable[Iterable[Any]], options: Mapping[str, Any]
    ) -> Iterable[Message]:
        if self._policy is not None and self._policy.concurrency_key is not None:
            for args in calls:
                yield self.message(_as_tuple(args), _NO_KWARGS, dict(options))
            return
        fields, envelope = self._plan(options, None)
        fields.pop("id", None)
        # The hot loop of bulk calls: everything but id and body is the same for all, so one envelope
        # is filled again and again, and the message's constants are bound once.
        make = partial(Message, **fields)
        encode, seal = self._encode, self._seal
        for call in calls:
            args = _as_tuple(call)
            envelope.body = encode(args, _NO_KWARGS)
            envelope.id = job_id = new_id()
            yield make(id=job_id, envelope=seal(envelope))

    def _plan_plain(self) -> tuple[dict[str, Any], Envelope]:
        self._plain = self._plan({}, None)
        return self._plain

    def _plan(
        self, options: Mapping[str, Any], parent: TaskContext | None
    ) -> tuple[dict[str, Any], Envelope]:
        """The fields of the message and the envelope that follow from the options."""
        if not options.keys() <= OPTIONS:
            _refuse_option(options)
        given = {name: value for name, value in options.items() if value is not None}
        policy = self._policy
        queue = check_name("queue", given["queue"]) if "queue" in given else self._queue()
        wanted = check_priority(given.get("priority"))
        if wanted is None:
            wanted = parent.priority if parent is not None else None
        priority = self._app.resolve_priority(wanted, policy, queue)
        timeout = policy.timeout if policy else None
        hard_timeout = self._hard_timeout
        if "timeout" in given or "hard_timeout" in given:
            if "timeout" in given:
                timeout = positive_seconds("timeout", given["timeout"])
            if "hard_timeout" in given:
                hard_timeout = positive_seconds("hard_timeout", given["hard_timeout"])
            check_timeouts(timeout, hard_timeout, f"this call of {self._task!r}")
        fields: dict[str, Any] = {
            **self._constants,
            "queue": queue,
            "priority": priority,
            **_when(given),
        }
        if "key" in given:
            fields["key"] = check_key("key", given["key"])
            scopes = ("window", "until_start", "until_end")
            scope = checks.one_of("key_scope", given.get("key_scope", "window"), scopes)
            fields["key_scope"] = cast("KeyScope", scope)
        if "job_id" in given:
            fields["id"] = check_name("job_id", given["job_id"])
        headers = given.get("headers")
        envelope = Envelope(
            v=VERSION,
            id="",
            task=self._task,
            queue=queue,
            priority=priority,
            max_attempts=policy.max_attempts if policy else 0,
            max_deliveries=self._constants["max_deliveries"],
            ack=policy.ack if policy else "",
            eta=fields.get("eta"),
            timeout=timeout,
            hard_timeout=hard_timeout,
            lease=self._lease,
            key=fields.get("key"),
            concurrency_limit=self._constants["concurrency_limit"],
            store_result=policy.store_result if policy else True,
            headers=None if headers is None else _check_headers(headers),
            content_type=self._find_codec().content_type,
        )
        return fields, envelope

    def _queue(self) -> str:
        return self._policy.queue if self._policy else self._app.config.default_queue

    def _find_codec(self) -> Codec:
        if self._codec is None:
            name = self._policy.serializer if self._policy else self._app.config.serializer
            self._codec = self._app.codecs.get(name)
        return self._codec

    def _encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        signature = self._signature
        if signature is not None:
            signature.bind(args, kwargs)
        codec = self._codec or self._find_codec()
        return self._app.codecs.encode_call(args, kwargs, codec, signature)

    def _seal(self, envelope: Envelope) -> bytes:
        try:
            data = encode_envelope(envelope)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodeError(f"the headers can't travel: {error}") from error
        if len(data) > self._limit:
            raise MessageTooLarge(len(data), self._limit)
        return data

    def _concurrency_key(
        self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        bound: dict[str, Any] = self._signature.bound(args, kwargs) if self._signature else {}
        return self._fill_key(template, bound)

    def _fill_key(self, template: str, bound: Mapping[str, Any]) -> str:
        try:
            key = template.format_map(bound)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"concurrency_key {template!r} of task {self._task!r} can't be filled "
                f"({type(error).__name__}: {error}): use the names of its arguments "
                f"({', '.join(bound) or 'it has none'}), as in 'user:{{user}}'"
            ) from error
        return check_key("concurrency_key", key)


def _own_connection(
    options: Mapping[str, Any] | None,
) -> tuple[object | None, Mapping[str, Any] | None]:
    """The caller's connection, if one is given, and the other options."""
    if not options or CONNECTION not in options:
        return None, options
    others = dict(options)
    return others.pop(CONNECTION), others


def _as_args(args: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(args, tuple):
        return args
    if _is_one_value(args):
        raise TypeError(f"args is a tuple: ({args!r:.80},)")
    return tuple(args)


def _as_tuple(call: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(call, tuple):
        return call
    if _is_one_value(call):
        raise TypeError(
            f"map_async takes the arguments of each call as a tuple: [({call!r:.40},), …]"
        )
    return tuple(call)


def _is_one_value(args: object) -> bool:
    """Whether this is an argument rather than a series of them."""
    values = (str, bytes, bytearray, Mapping, set, frozenset)
    return isinstance(args, values) or not isinstance(args, Iterable)


def _check_headers(headers: object) -> dict[str, Any]:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a dict, not {headers!r:.80}")
    for name in cast("Mapping[object, Any]", headers):
        if not isinstance(name, str):
            raise ConfigError(f"names of headers must be str, not {name!r:.80}")
    return dict(cast("Mapping[str, Any]", headers))


def _copy(envelope: Envelope) -> Envelope:
    return msgspec.structs.replace(envelope)


def _eta(value: object) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ConfigError(
                f"eta {value.isoformat()} has no time zone: pass an aware datetime, for example "
                f"datetime.now(timezone.utc) + …, or epoch seconds"
            )
        try:
            value = value.timestamp()
        except (OverflowError, ValueError) as error:
            raise ConfigError(f"eta {value!r} is out of range: {error}") from error
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"eta must be an aware datetime or epoch seconds, not {value!r:.80}")
    if not 0 <= value <= _LATEST_ETA or math.isinf(value):
        raise ConfigError(f"eta must be between 1970 and the end of 9999, not {value!r:.80}")
    return float(value)


def _refuse_option(options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - OPTIONS)
    hint = checks.did_you_mean(unknown[0], OPTIONS)
    raise TypeError(
        f"unknown option {unknown[0]!r} of a call{hint} (options: {', '.join(sorted(OPTIONS))})"
    )


def _when(given: Mapping[str, Any]) -> dict[str, float]:
    if "delay" in given and "eta" in given:
        raise ConfigError("give delay or eta, not both")
    found: dict[str, float] = {}
    if "delay" in given:
        found["delay"] = option_seconds("delay", given["delay"])
    if "eta" in given:
        found["eta"] = _eta(given["eta"])
    if "expires" in given:
        found["expires"] = positive_seconds("expires", option_seconds("expires", given["expires"]))
    return found
