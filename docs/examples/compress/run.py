"""A workflow on a real file: probe → split → map(compress) → merge, with a step that is finished elsewhere.

Two worker processes, one signing service, a queue in a temporary folder. One segment fails twice and is
tried again. The answer is checked: the parts, decompressed, are the file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
"""A large text that every Python brings: its language reference."""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=TEXT, help="what to compress")
    parser.add_argument("--size", type=int, default=65536, help="bytes a segment, about")
    parser.add_argument("--timeout", type=float, default=60, help="give up after so many seconds")
    return parser.parse_args(arguments)


@contextmanager
def processes(folder: Path, inbox: Path) -> Generator[None]:
    """Two workers and the signing service, as three terminals would start them."""
    worker = ["-m", "taskmq", "worker", "--app", "taskmq_compress:app", "-c", "4"]
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log:
        for words in (worker, worker, [str(HERE / "signer.py"), str(inbox)]):
            process = subprocess.Popen(
                [sys.executable, *words], cwd=HERE, stdout=log, stderr=log, start_new_session=True
            )
            started.append(process)
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(timeout=30)


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = options(arguments)
    with tempfile.TemporaryDirectory(prefix="taskmq-compress-") as name:
        folder, inbox = Path(name), Path(name, "inbox")
        inbox.mkdir()
        os.environ["TASKMQ_TRANSPORT"] = f"sqlite:///{folder}/queue.db"
        sys.path.insert(0, str(HERE))
        from taskmq_compress import app, archive

        with app, processes(folder, inbox):
            run = archive.submit(
                path=str(wanted.file.resolve()),
                folder=name,
                inbox=str(inbox),
                size=wanted.size,
            )
            print(f"run {run.id} of {wanted.file}")
            found = run.get(timeout=wanted.timeout)
            for entry in run.history():
                if entry.outcome == "RETRYING":
                    print(f"{entry.step}, attempt {entry.attempt}: {entry.error}")
            print(f"{len(found.parts)} parts, {found.size:,} bytes, {found.ratio:.0%} of the file")
            print(f"signed {found.signature}")
            print(run.graph("mermaid"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
