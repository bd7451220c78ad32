"""RQ on Redis: SimpleWorker, which runs one job at a time in its own process; no results kept."""

from __future__ import annotations

from typing import Any

from peers import common
from redis import Redis
from rq import Queue
from rq.worker import SimpleWorker

connection = Redis.from_url(common.URL)
queue = Queue("bench", connection=connection)


def noop(number: int) -> None:
    common.ran()


def stamp(sent: float) -> None:
    common.stamp(sent)


def enqueue(jobs: int) -> Any:
    def one(number: int) -> Any:
        return queue.enqueue("peers.rq.noop", number, result_ttl=0)

    def many() -> None:
        for at in range(0, jobs, common.BATCH):
            numbers = range(at, min(at + common.BATCH, jobs))
            queue.enqueue_many(
                [Queue.prepare_data("peers.rq.noop", (number,), result_ttl=0) for number in numbers]
            )

    one(0)
    single = common.rate(lambda: [one(number) for number in range(1, jobs)], jobs - 1)
    return single, common.rate(many, jobs)


def serve() -> None:
    SimpleWorker([queue], connection=connection).work(logging_level="ERROR")


def ask(count: int) -> None:
    common.ask(lambda sent: queue.enqueue("peers.rq.stamp", sent, result_ttl=0), count)


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=serve, ask=ask)
