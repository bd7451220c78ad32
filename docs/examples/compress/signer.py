"""The signing service of the example: a process that has nothing to do with workers.

`signer.py INBOX` takes requests from a folder, and completes the step that waits by its token. A real
service would get the token, or a URL of `taskmq.completion`, with the request.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from taskmq import App, Config


def serve(inbox: Path) -> None:
    with App(Config(events="null")) as app:
        while True:
            for request in sorted(inbox.glob("*.request")):
                token, digest = request.read_text(encoding="utf-8").split()
                signed = hashlib.blake2b(digest.encode(), key=b"secret", digest_size=8).hexdigest()
                app.complete(token, f"{signed} by process {os.getpid()}")
                request.unlink()
            time.sleep(0.05)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
