"""The command classes: lazy groups, shared options, examples in every help text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from taskmq_cli import extensions
from taskmq_cli.errors import MISUSED, cause_of, did_you_mean, report, silence, warn
from taskmq_cli.options import SHARED_NAMES, shared_options
from taskmq_cli.session import Session


class Lazy(NamedTuple):
    """A built-in command: where it is, and what help shows without importing it."""

    where: str
    summary: str


Examples = Sequence[tuple[str, str]]


class _Taught(click.Command):
    """Adds shared options and an Examples section to a click command."""

    examples: Examples = ()
    _shared: list[click.Parameter] | None = None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters and the shared ones."""
        own = super().get_params(ctx)
        if self._shared is None:
            # Made once: click keeps the order of the command line by the objects' identity.
            taken = {opt for param in own for opt in param.opts}
            self._shared = [each for each in shared_options() if taken.isdisjoint(each.opts)]
        return own + self._shared

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the own options first, the shared ones under a heading of their own."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                (shared if SHARED_NAMES.intersection(param.opts) else own).append(record)
        for title, rows in (("Options", own), ("Shared options", shared)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line, what in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
                    formatter.write(f"{'':>{formatter.current_indent + 4}}{what}\n")


class TaskmqCommand(_Taught):
    """A command with the shared options; `examples` are (command line, what it does) pairs."""

    def __init__(self, *args: Any, examples: Examples = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples


class TaskmqGroup(_Taught, click.Group):
    """A group of commands that are imported when they are called."""

    command_class = TaskmqCommand

    def __init__(
        self,
        *args: Any,
        examples: Examples = (),
        lazy: Mapping[str, Lazy] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.lazy: Mapping[str, Lazy] = lazy or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help when there is nothing to parse: it was asked for, in a way."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(MISUSED)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the table, then by name."""
        return [*self.lazy, *sorted(set(self.commands) - set(self.lazy))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name in self.lazy:
            return extensions.import_command(self.lazy[cmd_name].where)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the one that was meant."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if ctx.resilient_parsing:
            return None, None, args[1:]
        if name.startswith("-"):
            raise click.NoSuchOption(name, ctx=ctx)
        raise click.UsageError(
            f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}", ctx=ctx
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing those that the table knows."""
        rows = [(name, self.summary_of(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def summary_of(self, ctx: click.Context, name: str) -> str:
        """Return the line that help shows for a command."""
        if name in self.lazy:
            return self.lazy[name].summary
        command = self.commands.get(name)
        return command.get_short_help_str(90) if command is not None else ""

    # click splits a group's `format_options` in two; ours has been written by _Taught.
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options, then commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class RootGroup(TaskmqGroup):
    """The `taskmq` command itself: adds commands of plugins, and tells errors in one way."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands, then those of plugins."""
        known = super().list_commands(ctx)
        try:
            added = [*self._registered(ctx), *extensions.installed_names()]
        # A broken plugin must not take the help of everything else with it.
        except Exception as error:  # noqa: BLE001
            warn(f"plugins can't be listed: {cause_of(error)}")
            return known
        return [*known, *sorted(set(added) - set(known))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a built-in command, else a plugin's; one registered in code may override."""
        added = self._registered(ctx)
        if cmd_name in added:
            return extensions.checked(cmd_name, added[cmd_name])
        return super().get_command(ctx, cmd_name) or extensions.from_entry_point(cmd_name)

    def _registered(self, ctx: click.Context) -> dict[str, Any]:
        session = ctx.ensure_object(Session)
        if not session.wanted_plugins:
            return {}
        builtin = {name: lazy.where for name, lazy in self.lazy.items()}
        extensions.register_builtins(builtin)
        session.load_plugins()
        return extensions.registered(builtin)

    def summary_of(self, ctx: click.Context, name: str) -> str:
        """Return the line that help shows; a plugin's command isn't imported for it."""
        return super().summary_of(ctx, name) or "(from a plugin)"

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, tell an error in one or two lines, and exit with 0, 1, 2 or 130."""
        session: Session = extra.setdefault("obj", Session())

        def run() -> object:
            return super(RootGroup, self).main(
                args, prog_name or "taskmq", complete_var, standalone_mode=False, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(_guarded(run, session))


def _guarded(run: Callable[[], object], session: Session) -> int:
    try:
        code = run()
        # None in a process that was started without one, as by `>&-`.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return silence()
    # This is the one place where every error becomes a line and an exit code.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return report(error, debug=session.debug)
    return code if isinstance(code, int) else 0
