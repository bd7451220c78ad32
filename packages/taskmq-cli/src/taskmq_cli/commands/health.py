"""`taskmq health`."""

from __future__ import annotations

import click

from taskmq_cli import probe
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import Number, Whole


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq worker --health-file /run/shop/worker.json", "a worker that writes its health"),
        ("taskmq health --file /run/shop/worker.json", "alive and ready? (a readiness probe)"),
        ("taskmq health --file /run/shop/worker.json --live", "is a restart needed? (liveness)"),
        ("taskmq health --port 8081", "the worker that was started with --health-port 8081"),
    ),
)
@click.argument("url", required=False)
@click.option("--file", metavar="PATH", help="Read what `taskmq worker --health-file` writes.")
@click.option("--port", type=Whole(1, 65535), help="Ask this port of this machine.")
@click.option("--live", is_flag=True, help="Only whether it is alive, not whether it is ready.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for an answer.",
)
@click.option("--quiet", "-q", is_flag=True, help="Only the exit code.")
def health(
    url: str | None, file: str | None, port: int | None, live: bool, timeout: float, quiet: bool
) -> None:
    """Ask a worker how it is; JSON on stdout, exit code 0 when it is well and 1 when not.

    Neither the app nor the backend is touched. URL is http://HOST:PORT.
    """
    if sum(each is not None for each in (url, file, port)) != 1:
        raise click.UsageError("say where to ask: one of --file PATH, --port N or URL")
    address = ("127.0.0.1", port) if port is not None else None
    if url is not None:
        address = probe.parse_url(url)
        if address is None:
            raise click.UsageError(f"{url!r} names no port: write it like http://127.0.0.1:8081")
    asked = probe.Question(file=file, address=address, live=live, timeout=timeout, quiet=quiet)
    click.get_current_context().exit(probe.answer(asked))
