"""The console script `taskmq`."""

from __future__ import annotations

import io
import sys

import click

from taskmq_cli.group import RootGroup
from taskmq_cli.session import Session
from taskmq_cli.table import COMMANDS


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from taskmq_cli import __version__

        click.echo(f"taskmq {__version__}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        ("export TASKMQ_APP=myapp.tasks:app", "say once where the app is"),
        ("taskmq worker -Q email,default -c 8", "run jobs of two queues, eight at a time"),
        (
            'taskmq submit myapp.tasks.send_email --args \'["a@b.com", "hi"]\' --wait',
            "put a job on its queue and wait for the result",
        ),
        ("taskmq status", "see queues and workers"),
        ("taskmq dlq replay --all -Q email", "try the dead letters of one queue again"),
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run, watch and repair taskmq jobs.

    --app, --plugins, --transport, --json and --debug may stand before and after a command.
    TASKMQ_<FIELD> sets a field of Config, for example TASKMQ_CONCURRENCY=8.

    Exit codes: 0 done; 1 what was asked failed; 2 usage or configuration; 130 interrupted.
    """
    ctx.call_on_close(ctx.ensure_object(Session).close)


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal can't show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    cli.main()
