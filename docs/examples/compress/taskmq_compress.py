"""The example's app: a file is probed, split, compressed segment by segment, signed elsewhere, and merged.

Workers import it with `--app taskmq_compress:app`; TASKMQ_TRANSPORT says where the queue is.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from taskmq import App, Config, Retry, current_task
from taskmq.workflow import Step, WorkflowBuilder

CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "zlib": (zlib.compress, zlib.decompress),
    "bz2": (bz2.compress, bz2.decompress),
    "lzma": (lzma.compress, lzma.decompress),
}
UNLUCKY = 2
"""The segment that fails twice."""

app = App(Config(default_queue="compress", lease=4, heartbeat_interval=1, events="null"))


@dataclass(frozen=True)
class Source:
    """What is known of the file before any work on it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Segment:
    """A part of the file, whole lines, and how it is to be compressed."""

    index: int
    path: str
    begin: int
    end: int
    codec: str


@dataclass(frozen=True)
class Part:
    """A compressed segment: where it lies, and from what."""

    path: str
    codec: str
    size: int


@dataclass(frozen=True)
class Archive:
    """What a run gives."""

    parts: list[Part]
    size: int
    ratio: float
    signature: str


@app.task(name="probe")
def probe(path: str) -> Source:
    data = Path(path).read_bytes()
    return Source(path, len(data), hashlib.sha256(data).hexdigest())


@app.task(name="split")
def split(source: Source, size: int) -> list[Segment]:
    """Segments of about `size` bytes that end where a line ends. How many is known only here."""
    data = Path(source.path).read_bytes()
    segments: list[Segment] = []
    codecs, begin = cycle(CODECS), 0
    while begin < len(data):
        newline = data.find(b"\n", begin + size)
        end = len(data) if newline < 0 else newline + 1
        segments.append(Segment(len(segments), source.path, begin, end, next(codecs)))
        begin = end
    return segments


@app.task(name="compress", retry=Retry(max_attempts=3, base=0.1))
def compress(segment: Segment, folder: str) -> Part:
    attempt = current_task().attempt
    if segment.index == UNLUCKY and attempt < 3:
        raise OSError(f"no space left for segment {segment.index} (on purpose, attempt {attempt})")
    with Path(segment.path).open("rb") as file:
        file.seek(segment.begin)
        data = file.read(segment.end - segment.begin)
    packed = CODECS[segment.codec][0](data)
    # Named by the segment: a second delivery writes the same again.
    path = Path(folder, f"{segment.index:04}.{segment.codec}")
    path.write_bytes(packed)
    return Part(str(path), segment.codec, len(packed))


@app.task(name="sign", completion="external", completion_timeout=60)
def sign(source: Source, inbox: str) -> None:
    """Ask the signing service, which runs elsewhere and takes its time; no worker waits for it."""
    request = Path(inbox, f"{source.sha256}.request")
    draft = request.with_suffix(".draft")
    draft.write_text(f"{current_task().completion_token}\n{source.sha256}\n", encoding="utf-8")
    draft.rename(request)


@app.task(name="merge")
def merge(source: Source, parts: list[Part], signature: str) -> Archive:
    """Check that the parts give the file again, in order, before anybody relies on them."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(CODECS[part.codec][1](Path(part.path).read_bytes()))
    if digest.hexdigest() != source.sha256:
        raise ValueError(f"the parts do not give {source.path} again")
    size = sum(part.size for part in parts)
    return Archive(parts, size, size / max(1, source.size), signature)


@app.workflow("archive")
def archive(wf: WorkflowBuilder, path: str, folder: str, inbox: str, size: int) -> Step[Archive]:
    source = wf.step("probe", probe, args=(path,))
    segments = wf.step("split", split, deps={"source": source}, kwargs={"size": size})
    parts = wf.map("compress", compress, over=segments, arg="segment", kwargs={"folder": folder})
    signature = wf.step("sign", sign, deps={"source": source}, kwargs={"inbox": inbox})
    return wf.step("merge", merge, deps={"source": source, "parts": parts, "signature": signature})
