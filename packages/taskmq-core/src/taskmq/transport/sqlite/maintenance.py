"""One bounded pass of maintenance: what nobody else will end, and what has been kept long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport import rates
from taskmq.transport.sqlite.completion import TIMED_OUT, hand_over
from taskmq.transport.sqlite.dead import drop_dead
from taskmq.transport.sqlite.endings import EXPIRED, JOB, Job, end
from taskmq.transport.sqlite.schema import FOREVER, Phase
from taskmq.transport.sqlite.settle import WORKER_LOST, give_back
from taskmq.transport.sqlite.step import decode_list, encode_list
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import Ended, ErrorInfo, ReapReport

if TYPE_CHECKING:
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import ReapRequest, Retention

_OVER = f"SELECT {JOB} FROM jobs INDEXED BY jobs_line WHERE phase = ? AND rank <= ? ORDER BY rank LIMIT ?"
_EXPIRED = (
    f"SELECT {JOB} FROM jobs INDEXED BY jobs_expiring WHERE expires_at <= ? "
    "AND phase BETWEEN 1 AND 5 ORDER BY expires_at LIMIT ?"
)
_NEXT = (
    "SELECT min(at) FROM ("
    "SELECT min(rank) AS at FROM jobs INDEXED BY jobs_line WHERE phase = 6 UNION ALL "
    "SELECT min(rank) FROM jobs INDEXED BY jobs_line WHERE phase = 7 UNION ALL "
    f"SELECT min(rank) FROM jobs INDEXED BY jobs_line WHERE phase = 9 AND rank < {FOREVER} UNION ALL "
    "SELECT min(expires_at) FROM jobs INDEXED BY jobs_expiring "
    "WHERE expires_at IS NOT NULL AND phase BETWEEN 1 AND 5)"
)
_FINISHED = (
    "SELECT (SELECT count(*) FROM jobs) - "
    "(SELECT count(*) FROM jobs INDEXED BY jobs_line WHERE phase >= 0)"
)
_OLD_KEYS = (
    "keys WHERE key IN (SELECT k.key FROM keys k LEFT JOIN jobs j ON j.id = k.job "
    "WHERE k.look_at <= ? AND (j.phase IS NULL OR j.phase = 10) LIMIT ?)"
)
_OLD_WORKERS = "workers WHERE id IN (SELECT id FROM workers WHERE heartbeat_at <= ? LIMIT ?)"
_OLD_LEASES = "leases WHERE name IN (SELECT name FROM leases WHERE until <= ? LIMIT ?)"
_OLD_RATES = (
    "rates WHERE name IN (SELECT name FROM rates WHERE max(free_at, promised_until) <= ? LIMIT ?)"
)
_RUN_RECHECK = 30.0
_LEASE_KEPT = 86_400.0


class Maintaining(Store):
    """`reap`."""

    def reap(self, request: ReapRequest) -> ReapReport:
        """See the contract."""
        with self._step() as step:
            sweep = _Sweep(step, request)
            sweep.run()
            (next_at,) = step.con.execute(_NEXT).fetchone()
            return ReapReport(
                requeued=sweep.requeued,
                timed_out=sweep.timed_out,
                pruned=sweep.pruned,
                ended=tuple(sweep.ended),
                next_in=None if next_at is None else max(0.0, float(next_at) - step.now),
                more=sweep.more,
            )


class _Sweep:
    def __init__(self, step: Step, request: ReapRequest) -> None:
        self._step = step
        self._request = request
        self._limit = max(1, request.limit)
        self.requeued = 0
        self.timed_out = 0
        self.pruned = 0
        self.ended: list[Ended] = []
        self.more = False

    def run(self) -> None:
        """Do each kind of work once, within the bound."""
        if self._request.recover:
            for job in self._over(Phase.LEASED):
                self._take_back(job)
            for job in self._over(Phase.ACKNOWLEDGED):
                self._bury(job)
        for job in self._expired():
            self._end(job, JobState.EXPIRED, EXPIRED)
        for job in self._over(Phase.PARKED):
            hand_over(self._step, job, TIMED_OUT)
            self.timed_out += 1
        self._prune_dead(self._request.retention)
        self._prune_jobs(self._request.retention)
        self._prune_rest(self._request.retention)

    def _over(self, phase: int) -> list[Job]:
        rows = self._step.con.execute(_OVER, (phase, self._step.now, self._limit)).fetchall()
        return self._bounded(rows)

    def _expired(self) -> list[Job]:
        rows = self._step.con.execute(_EXPIRED, (self._step.now, self._limit)).fetchall()
        return self._bounded(rows)

    def _bounded(self, rows: list[tuple[object, ...]]) -> list[Job]:
        self.more = self.more or len(rows) >= self._limit
        return [Job._make(row) for row in rows]

    def _take_back(self, job: Job) -> None:
        if job.cancelled:
            self._end(job, JobState.REVOKED, ErrorInfo(reason="revoked", message="it was revoked"))
        elif job.deliveries >= job.max_deliveries:
            self._bury(job)
        else:
            give_back(self._step, job, keep_receipt=True)
            self.requeued += 1

    def _bury(self, job: Job) -> None:
        self._end(job, JobState.FAILED, WORKER_LOST, dead=True)

    def _end(self, job: Job, state: JobState, error: ErrorInfo, *, dead: bool = False) -> None:
        end(self._step, job, state, error=error, dead=dead)
        self.ended.append(
            Ended(id=job.id, task=job.task, queue=job.queue, state=state, reason=error.reason)
        )

    # --- what has been kept long enough ---

    def _prune_dead(self, retention: Retention) -> None:
        now, limit = self._step.now, self._limit
        oldest = (
            "seq IN (SELECT seq FROM jobs INDEXED BY jobs_line WHERE phase = 10 {} "
            "ORDER BY rank, seq LIMIT ?)"
        )
        if retention.dead_letter_ttl is not None:
            bound = (now - retention.dead_letter_ttl, limit)
            self._count(drop_dead(self._step, oldest.format("AND rank <= ?"), bound))
        if retention.dead_letter_max is not None:
            (count,) = self._step.con.execute(
                "SELECT count(*) FROM jobs INDEXED BY jobs_line WHERE phase = 10"
            ).fetchone()
            excess = min(count - retention.dead_letter_max, limit)
            if excess > 0:
                self._count(drop_dead(self._step, oldest.format(""), (excess,)))

    def _prune_jobs(self, retention: Retention) -> None:
        """Look at the rows whose time has come, and drop those that are really over."""
        excess = 0
        if retention.max_finished_jobs is not None:
            (finished,) = self._step.con.execute(_FINISHED).fetchone()
            excess = finished - retention.max_finished_jobs
        looked = dropped = 0
        while looked < self._limit:
            due = FOREVER if dropped < excess else self._step.now
            entry = self._step.con.execute(
                "SELECT at, n, rows FROM endings WHERE at <= ? ORDER BY at LIMIT 1", (due,)
            ).fetchone()
            if entry is None:
                break
            at, n, rows = entry
            self._step.con.execute("DELETE FROM endings WHERE at = ? AND n = ?", (at, n))
            seqs = decode_list(rows)
            part = seqs[: self._limit - looked]
            if len(part) < len(seqs):
                self._step.look_again(seqs[len(part) :], at)
            looked += len(part)
            gone = self._prune_entry(part, excess - dropped)
            dropped += gone
        self._count(dropped)
        self.more = self.more or looked >= self._limit

    def _prune_entry(self, seqs: list[int], excess: int) -> int:
        """Drop the rows of an entry that are over and keep the others in mind; how many."""
        found = self._step.con.execute(
            "SELECT seq, id, rank, run, job_ttl FROM jobs "
            "WHERE seq IN (SELECT value FROM json_each(?)) AND phase IS NULL",
            (encode_list(seqs).decode(),),
        ).fetchall()
        doomed: list[tuple[int, str]] = []
        for seq, job_id, rank, run, job_ttl in found:
            keep_until = self._kept_by_run(run, job_ttl) if run is not None else None
            if keep_until is None:
                keep_until = rank
            if keep_until <= self._step.now or (run is None and len(doomed) < excess):
                doomed.append((seq, job_id))
            else:
                self._step.look_again((seq,), keep_until)
        self._delete(doomed)
        return len(doomed)

    def _kept_by_run(self, run: str, job_ttl: float) -> float | None:
        """Until when a step's record stays: while its run lives, and then as long as the run's."""
        row = self._step.con.execute("SELECT phase, rank FROM jobs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return None
        if row[0] is Phase.ENDED:
            return float(row[1])
        return self._step.now + max(job_ttl, _RUN_RECHECK)

    def _delete(self, doomed: list[tuple[int, str]]) -> None:
        con = self._step.con
        seqs = encode_list([seq for seq, _ in doomed]).decode()
        for table in ("jobs", "envelopes"):
            con.execute(
                f"DELETE FROM {table} WHERE seq IN (SELECT value FROM json_each(?))", (seqs,)
            )
        ids = encode_list([job_id for _, job_id in doomed]).decode()
        con.execute("DELETE FROM arrivals WHERE target IN (SELECT value FROM json_each(?))", (ids,))

    def _prune_rest(self, retention: Retention) -> None:
        con, now, limit = self._step.con, self._step.now, self._limit
        # A key outlives its time while its job lives: looked at again later.
        con.execute(
            "UPDATE keys SET look_at = ?1 + 60 WHERE key IN (SELECT k.key FROM keys k "
            "CROSS JOIN jobs j ON j.id = k.job "
            "WHERE k.look_at <= ?1 AND j.phase BETWEEN 1 AND 9 LIMIT ?2)",
            (now, limit),
        )
        for sql, bound in (
            (_OLD_KEYS, now),
            ("spent WHERE receipt IN (SELECT receipt FROM spent WHERE until <= ? LIMIT ?)", now),
            (_OLD_WORKERS, now - retention.worker_ttl),
            (_OLD_LEASES, now - _LEASE_KEPT),
            (_OLD_RATES, now - rates.KEPT),
        ):
            self._count(con.execute(f"DELETE FROM {sql}", (bound, limit)).rowcount)

    def _count(self, number: int) -> None:
        self.pruned += max(0, number)
