"""Finding the app that `--app` names, with errors that point at the real cause."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from taskmq_cli.errors import Misuse, a_type, cause_of, did_you_mean, frame_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from taskmq.app import App

_EXAMPLE = "write it like --app myapp.tasks:app"


def load_app(name: str) -> App:
    """Import the app at "module:attribute", or the only one of "module", and its task modules.

    Raises:
        Misuse: There is no such module, attribute or app; or the module fails while it is imported.
    """
    module_name, colon, attribute = name.partition(":")
    _check_spelling(name, module_name, attribute, bool(colon))
    with on_import_path():
        module = _import(module_name, f"app {name!r}")
        app = _attribute(module, attribute) if colon else _only_app(module)
        _load_tasks(app, name)
    return app


@contextmanager
def on_import_path() -> Generator[None, None, None]:
    """Put the working directory first on the import path, and leave it there."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    yield


def _check_spelling(name: str, module: str, attribute: str, has_colon: bool) -> None:
    parts = module.split(".")
    if module.endswith(".py") or "/" in module or os.sep in module:
        dotted = module.removesuffix(".py").strip("./").replace(os.sep, ".").replace("/", ".")
        raise Misuse(f"--app takes a module, not a file: try {dotted}:{attribute or 'app'}")
    if not all(part.isidentifier() for part in parts):
        raise Misuse(f"{name!r} names no module: {_EXAMPLE}")
    if has_colon and not attribute.replace(".", "_").isidentifier():
        raise Misuse(f"{name!r} names no attribute after the colon: {_EXAMPLE}")


def _import(module: str, what: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_missing(module, error):
            near = _with_colon(module) or did_you_mean(module, _siblings(module))
            raise Misuse(
                f"there is no module {error.name!r} for {what} (looked in {Path.cwd()} and "
                f"PYTHONPATH){near}"
            ) from None
        raise Misuse(f"{what} can't be imported: {cause_of(error)}{_line_of(error)}") from error


def _with_colon(module: str) -> str:
    """Return a hint when the last part is an app, not a module: `tasks.app` for `tasks:app`."""
    parent, _, last = module.rpartition(".")
    # The import of a submodule has imported what it would be in.
    if parent in sys.modules and last in _apps_of(sys.modules[parent]):
        return f"; did you mean {parent}:{last}?"
    return ""


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether the module itself is missing, and not something that it imports."""
    missing = error.name or ""
    if module != missing and not module.startswith(missing + "."):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return all(
        frame.filename.startswith("<frozen ")
        or frame.filename in {__file__, import_module.__code__.co_filename}
        for frame in frames
    )


def _line_of(error: BaseException) -> str:
    """Return the source line that raised, so that the cause is seen without a traceback."""
    if isinstance(error, SyntaxError):
        return f"\n  {(error.text or '').strip()}" if error.text else ""
    frame = frame_of(error)
    return f"\n  in {frame.name}: {frame.line.strip()}" if frame and frame.line else ""


def _siblings(module: str) -> list[str]:
    """Return the modules that stand where `module` was looked for."""
    parent, _, _ = module.rpartition(".")
    if not parent:
        return [each.name for each in iter_modules([str(Path.cwd())])]
    try:
        spec = find_spec(parent)
    except (ImportError, ValueError):
        return _siblings(parent)
    if spec is None:
        return _siblings(parent)
    places = spec.submodule_search_locations or []
    return [f"{parent}.{each.name}" for each in iter_modules(list(places))]


def _attribute(module: ModuleType, path: str) -> App:
    from taskmq.app import App

    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            apps = ", ".join(_apps_of(module)) or "none"
            raise Misuse(
                f"module {module.__name__!r} has no attribute {path!r}; "
                f"apps in it: {apps}{did_you_mean(path, _apps_of(module))}"
            )
        found = getattr(found, part)
    if isinstance(found, App):
        return found
    apps = ", ".join(_apps_of(module)) or "none"
    raise Misuse(
        f"'{module.__name__}:{path}' is {a_type(found)}, not a taskmq App; "
        f"apps in the module: {apps}"
    )


def _apps_of(module: ModuleType) -> dict[str, App]:
    """Return the names of the module's apps, one name for each app."""
    from taskmq.app import App

    named: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and not any(value is other for other in named.values()):
            named[name] = value
    return named


def _only_app(module: ModuleType) -> App:
    apps = _apps_of(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise Misuse(
            f"module {module.__name__!r} has no taskmq App; define one (app = App(…)) or {_EXAMPLE}"
        )
    choices = " or ".join(f"{module.__name__}:{name}" for name in apps)
    raise Misuse(f"module {module.__name__!r} has {len(apps)} apps: say which one, {choices}")


def _load_tasks(app: App, name: str) -> None:
    from taskmq.errors import ConfigError

    try:
        app.load()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"a module that app {name!r} includes can't be imported: "
            f"{cause_of(error)}{_line_of(error)}"
        ) from error
