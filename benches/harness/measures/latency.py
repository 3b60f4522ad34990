"""How long after its commit an event's handler starts, and until it is settled."""

import random
import time

from ..cluster import poll
from ..load import EVENT, JOB, KEY, Load, events, jobs, spread
from ..subjects import PROJECT, Graphile, OutriggerPostgres

BURST = 24
BACKLOG = 100_000

# The transaction that recorded an event, by the key in its payload.
COMMITTED = "extract(epoch FROM pg_xact_commit_timestamp((({})::xid8)::xid))::float8"


class Clocked(OutriggerPostgres):
    """A host whose handler logs when it starts.

    Those logs are kept with the attempts, of which a part is kept, as always:
    up to 200 a second here, 20 by default. All are in a burst, and where events
    come so fast that they queue: those that are kept would be the lucky ones."""

    def __init__(self, bench, record, backlog=0):
        super().__init__(bench, plugin="clock", trigger={"record": record})
        self.backlog = backlog

    def prepare(self):
        super().prepare()
        if self.backlog:
            self.define("busy", "probe")

    def start_backlog(self):
        """Another project's events, whose handler sleeps: they outlast the run."""
        if not self.backlog:
            return
        self.record(self.backlog, project="busy",
                    payload='{"n": %s, "do": [{"op": "sleep", "ms": 300}]}')
        self.commit()
        poll(lambda: self.watcher.execute(
            "SELECT count(*) FROM outrigger_outbox WHERE project_id = 'busy'"
            " AND dispatched_at IS NOT NULL LIMIT 1").fetchone()[0], sake="the backlog moves")

    def mark(self):
        self.first = self.watcher.execute(
            "SELECT coalesce(max(pk), 0) FROM outrigger_outbox").fetchone()[0]

    def all_through(self, within=120.0):
        poll(lambda: self.watcher.execute(
            "SELECT NOT EXISTS (SELECT 1 FROM outrigger_outbox WHERE project_id = %s"
            " AND pk > %s AND dispatched_at IS NULL)", (PROJECT, self.first)).fetchone()[0],
             within=within, sake="the events of the run")

    def figures(self, skip=0.0):
        """Of the events since `mark`, without those of the first seconds."""
        committed = COMMITTED.format("o.payload_json->>'key'")
        rows = self.watcher.execute(
            f"SELECT {committed}, extract(epoch FROM pg_xact_commit_timestamp(o.xmin))::float8,"
            "       (a.logs_json::json->0->>'text')::float8 / 1e6"
            "  FROM outrigger_outbox o LEFT JOIN outrigger_attempt a ON a.event_pk = o.pk"
            " WHERE o.project_id = %s AND o.pk > %s ORDER BY o.pk",
            (PROJECT, self.first)).fetchall()
        begin = rows[0][0] + skip
        rows = [row for row in rows if row[0] >= begin]
        sampled = [row for row in rows if row[2] is not None]
        figures = {"start": spread([row[2] - row[0] for row in sampled]),
                   "settled": spread([row[1] - row[0] for row in rows])}
        # Whether the kept attempts are like all: the same figure of those alone.
        figures["settledOfSampled"] = spread([row[1] - row[0] for row in sampled])
        if self.backlog:
            figures["backlogLeft"] = self.watcher.execute(
                "SELECT count(*) FROM outrigger_outbox WHERE project_id = 'busy'"
                " AND dispatched_at IS NULL").fetchone()[0]
        return figures


class GraphileClocked(Graphile):
    """graphile-worker with a task that notes when it starts."""

    def __init__(self, bench, **more):
        super().__init__(bench, task="clock", **more)

    def warm(self, events=500):
        self.task = "noop"
        super().warm(events)

    def samples(self):
        """The pairs of key and start since the last time, once all have run."""
        poll(lambda: self.watcher.execute(
            "SELECT NOT EXISTS (SELECT 1 FROM graphile_worker._private_jobs)").fetchone()[0],
             sake="the jobs of the run")
        time.sleep(0.1)
        return self.workers[0].ask("samples")["samples"]

    def figures(self, samples, skip=0.0):
        keys = sorted({key for key, _ in samples})
        committed = COMMITTED.format("key")
        at = dict(self.watcher.execute(
            f"SELECT key, {committed} FROM unnest(%s::text[]) key", (keys,)).fetchall())
        begin = min(at.values()) + skip
        return {"start": spread([start / 1e6 - at[key] for key, start in samples
                                 if at[key] >= begin])}


class Latency:
    """At steady rates and in a burst, beside nothing and beside a backlog."""

    name = "latency"

    def subjects(self, bench):
        for rate in (100, 1000, 5000):
            for backlog in (0, BACKLOG):
                beside = " beside a backlog" if backlog else ""
                yield f"outrigger {rate}/s{beside}", lambda r=rate, b=backlog: self.steady(
                    bench, r, b)
        yield "graphile-worker 1000/s", lambda: self.graphile_steady(bench, 1000)
        # Its notifications let one transaction commit at a time, which keeps
        # single jobs from coming at that rate: transactions of ten as well.
        for rate in (1000, 5000):
            yield f"outrigger {rate}/s by tens", lambda r=rate: self.steady(
                bench, r, 0, tens=True)
        for mode in ("", "-default"):
            yield f"graphile-worker{mode} 1000/s by tens", lambda m=mode: self.graphile_steady(
                bench, 1000, mode=m.lstrip("-") or "fast", tens=True)
        yield f"outrigger burst of {BURST}", lambda: self.burst(bench)
        yield f"graphile-worker burst of {BURST}", lambda: self.graphile_burst(bench)
        yield f"graphile-worker-default burst of {BURST}", lambda: self.graphile_burst(
            bench, mode="default")

    @staticmethod
    def spans(bench):
        """Seconds of a run, seconds of it that don't count, bursts."""
        return (6, 2, 8) if bench.quick else (25, 5, 40)

    def steady(self, bench, rate, backlog, tens=False):
        seconds, skip, _ = self.spans(bench)
        record = "200/s" if rate <= 1000 else "all"
        subject = Clocked(bench, record, backlog // 10 if bench.quick else backlog)
        try:
            subject.prepare()
            subject.warm()
            subject.settle()
            subject.start_backlog()
            subject.mark()
            made = self.load(bench, subject, EVENT, events(10), seconds, rate, tens)
            subject.all_through()
            return {"rate": made} | subject.figures(skip)
        finally:
            subject.close()
            subject.discard()

    @staticmethod
    def load(bench, subject, single, ten, seconds, rate, tens):
        """Records at a rate for some seconds; answers the rate that came of it."""
        if tens:
            return Load(bench, subject.database, ten, seconds, rate / 10).finish() * 10
        return Load(bench, subject.database, single, seconds, rate).finish()

    def burst(self, bench):
        _, _, times = self.spans(bench)
        subject = Clocked(bench, "all")
        try:
            subject.prepare()
            subject.warm()
            subject.settle()
            subject.mark()
            for number in range(times):
                time.sleep(random.uniform(0.8, 1.6))
                subject.writer.execute(
                    "INSERT INTO outrigger_outbox"
                    " (project_id, resource, aggregate_id, event_name, payload_json)"
                    f" SELECT 'bench', 'order', 'b-{number}-' || i, 'order.placed', {KEY}"
                    "    FROM generate_series(1, %s) i", (BURST,))
                subject.commit()
            subject.all_through()
            return subject.figures()
        finally:
            subject.close()
            subject.discard()

    def graphile_steady(self, bench, rate, mode="fast", tens=False):
        seconds, skip, _ = self.spans(bench)
        subject = GraphileClocked(bench, mode=mode)
        try:
            subject.prepare()
            subject.warm(200)
            subject.settle()
            made = self.load(bench, subject, JOB, jobs(10), seconds, rate, tens)
            # One that can't keep up has a backlog by now, which is not waited for.
            left = subject.watcher.execute(
                "SELECT count(*) FROM graphile_worker._private_jobs").fetchone()[0]
            if left > rate:
                samples = subject.workers[0].ask("samples")["samples"]
                return {"rate": made, "left": left} | subject.figures(samples)
            return {"rate": made} | subject.figures(subject.samples(), skip)
        finally:
            subject.close()
            subject.discard()

    def graphile_burst(self, bench, mode="fast"):
        _, _, times = self.spans(bench)
        subject = GraphileClocked(bench, mode=mode)
        try:
            subject.prepare()
            subject.warm(200)
            subject.settle()
            for _ in range(times):
                time.sleep(random.uniform(0.8, 1.6))
                subject.writer.execute(
                    "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY("
                    f"  SELECT ('clock', {KEY}, NULL, NULL, NULL, NULL, NULL, NULL)"
                    "          ::graphile_worker.job_spec FROM generate_series(1, %s)))",
                    (BURST,))
                subject.commit()
            return subject.figures(subject.samples())
        finally:
            subject.close()
            subject.discard()
