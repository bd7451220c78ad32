"""Names of our tables, indexes and functions, under any schema and prefix, quoted for SQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_PLACE = re.compile(r"\{(['-]?)([a-z_0-9]+)\}")


class Names:
    """Fills the places in SQL texts: `{jobs}`, `{-jobs_id}`, `{'numbers}`.

    Args:
        schema: The schema that our tables are in.
        prefix: What their names begin with.
    """

    def __init__(self, schema: str = "public", prefix: str = "taskmq_") -> None:
        self.schema = schema
        self.prefix = prefix

    @property
    def quoted_schema(self) -> LiteralString:
        """The schema, quoted."""
        return quote(self.schema)

    def qualified(self, name: str) -> str:
        """The quoted name with its schema."""
        return f"{quote(self.schema)}.{quote(self.prefix + name)}"

    def fill(self, sql: str) -> LiteralString:
        """Put names into a text that is sent without parameters.

        `{name}` becomes the quoted name with its schema, `{-name}` the one without (what CREATE INDEX
        wants), `{'name}` the first as a literal (what nextval wants).
        """
        # Our own texts and checked, quoted names: as good as written here.
        filled: LiteralString = cast("Any", _PLACE.sub(self._name, sql))
        return filled

    def statement(self, sql: str) -> LiteralString:
        """Put names into a text that is sent with parameters (`%s`)."""
        text = _PLACE.sub(lambda match: self._name(match).replace("%", "%%"), sql)
        filled: LiteralString = cast("Any", text)
        return filled

    def _name(self, match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "-":
            return quote(self.prefix + name)
        if kind == "'":
            return "'" + self.qualified(name).replace("'", "''") + "'"
        return self.qualified(name)


def quote(identifier: str) -> LiteralString:
    """An identifier in double quotes."""
    text = identifier.replace('"', '""')
    quoted: LiteralString = cast("Any", f'"{text}"')
    return quoted
