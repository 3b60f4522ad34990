"""What is measured: Outrigger on either database, and the other queues.

Each has the same life: `prepare` makes a fresh database and starts what
works on it, `warm` runs some through, `record` writes a backlog in one
transaction that isn't committed yet, `commit` commits it and answers when,
`finished` waits for the end and answers when that was, `close` ends all.
"""

import os
import sqlite3
import time

from .cluster import poll, tuples
from .competitor import Worker
from .host import Host

PROJECT = "bench"


class Outrigger:
    """What its two databases have in common."""

    def __init__(self, bench, hosts=1, aggregates=10_000, plugin="noop", trigger=None,
                 settings=None):
        self.bench = bench
        self.number, self.aggregates, self.plugin = hosts, aggregates, plugin
        self.document, self.settings = trigger or {}, settings or {}
        self.hosts, self.watcher, self.writer = [], None, None

    def start(self, url):
        for _ in range(self.number):
            self.hosts.append(Host(self.bench.binary, url, self.settings, self.bench.log_file))
        self.host = self.hosts[0]
        self.define(PROJECT, self.plugin, **self.document)

    def define(self, project, plugin, **document):
        self.host.project(project)
        self.host.plugin(project, plugin, self.bench.plugin(plugin))
        self.host.trigger(project, "t", plugin, **document)

    def pids(self):
        return [host.pid for host in self.hosts]

    def warm(self, events=500):
        """Some events, the first of which wait for the plugin to be compiled."""
        for number in (20, events):
            self.record(number)
            self.commit()
            self.finished(number)
        # Whoever is idle has gone to sleep by then.
        time.sleep(1.0)

    def close(self):
        for host in self.hosts:
            host.stop()
        self.hosts = []


class OutriggerPostgres(Outrigger):
    """Hosts on the cluster."""

    database = "outrigger"
    table = "outrigger_outbox"

    def __init__(self, bench, **more):
        super().__init__(bench, **more)
        self.cluster = bench.cluster

    def prepare(self):
        self.cluster.fresh(self.database)
        self.start(self.cluster.url(self.database))
        self.watcher = self.cluster.connect(self.database)
        self.writer = self.cluster.connect(self.database, autocommit=False)

    def settle(self):
        self.cluster.settle(self.database)

    def record(self, events, project=PROJECT, payload='{"n": %s}'):
        self.writer.execute(
            "INSERT INTO outrigger_outbox"
            " (project_id, resource, aggregate_id, event_name, payload_json)"
            " SELECT %s, 'order', 'o-' || (i %% %s), 'order.placed', format(%s, i)::json"
            "   FROM generate_series(1, %s) i",
            (project, self.aggregates, payload, events))
        self.last = self.writer.execute(
            "SELECT max(pk) FROM outrigger_outbox").fetchone()[0]

    def commit(self):
        self.writer.commit()
        return time.time()

    def finished(self, events, within=900.0):
        """Looks at the last rows alone, so as not to disturb; then at all, and
        at deliveries."""
        tail = ("SELECT NOT EXISTS (SELECT 1 FROM outrigger_outbox"
                " WHERE pk > %s AND dispatched_at IS NULL)")
        poll(lambda: self.watcher.execute(tail, (self.last - 1000,)).fetchone()[0],
             within=within, sake=f"{events} events")
        rest = "SELECT count(*) FROM outrigger_outbox WHERE pk > %s AND dispatched_at IS NULL"
        first = self.last - events
        poll(lambda: self.watcher.execute(rest, (first,)).fetchone()[0] == 0,
             within=within, sake="the last events")
        open_ones = ("SELECT count(*) FROM outrigger_delivery"
                     " WHERE event_pk > %s AND project_id = %s AND state IN ('ready', 'blocked')")
        poll(lambda: self.watcher.execute(open_ones, (first, PROJECT)).fetchone()[0] == 0,
             within=within, sake="deliveries")
        # When the transaction committed that acknowledged the last one. A share
        # that went into its own queue ends there.
        end = "extract(epoch FROM max(pg_xact_commit_timestamp(xmin)))::float8"
        span = (first, self.last)
        through, done = self.watcher.execute(
            f"SELECT {end}, count(*) FILTER (WHERE result_json->'t'->>'outcome' = 'done')"
            " FROM outrigger_outbox WHERE pk > %s AND pk <= %s", span).fetchone()
        later, self.spilled = self.watcher.execute(
            f"SELECT {end}, count(*) FROM outrigger_delivery"
            " WHERE event_pk > %s AND event_pk <= %s AND state = 'done'", span).fetchone()
        if done + self.spilled != events:
            raise RuntimeError(f"of {events} events only {done + self.spilled} are done")
        return max(through, later or 0)

    def tuples(self):
        return tuples(self.cluster, self.database, self.table)

    def close(self):
        super().close()
        for connection in (self.watcher, self.writer):
            if connection is not None:
                connection.close()

    def discard(self):
        self.cluster.drop(self.database)


class OutriggerSqlite(Outrigger):
    """A host on a file, which the harness writes beside it as an application would."""

    cluster = None
    database = None
    db = None

    def prepare(self):
        self.file = os.path.join(self.bench.folder, "outrigger.db")
        self.discard()
        self.start(f"sqlite:{self.file}")
        self.db = sqlite3.connect(self.file, timeout=60, isolation_level=None)

    def settle(self):
        self.db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def record(self, events, project=PROJECT, payload='{"n": %s}'):
        self.db.execute("BEGIN IMMEDIATE")
        rows = ((project, f"o-{i % self.aggregates}", payload % i)
                for i in range(1, events + 1))
        self.db.executemany(
            "INSERT INTO outrigger_outbox"
            " (project_id, resource, aggregate_id, event_name, payload_json)"
            " VALUES (?, 'order', ?, 'order.placed', ?)", rows)
        self.last = self.db.execute("SELECT max(pk) FROM outrigger_outbox").fetchone()[0]

    def commit(self):
        self.db.execute("COMMIT")
        return time.time()

    def finished(self, events, within=900.0):
        one = lambda sql, *values: self.db.execute(sql, values).fetchone()
        tail = ("SELECT NOT EXISTS (SELECT 1 FROM outrigger_outbox"
                " WHERE pk > ? AND dispatched_at IS NULL)")
        poll(lambda: one(tail, self.last - 1000)[0], within=within, sake=f"{events} events")
        first = self.last - events
        rest = "SELECT count(*) FROM outrigger_outbox WHERE pk > ? AND dispatched_at IS NULL"
        poll(lambda: one(rest, first)[0] == 0, within=within, sake="the last events")
        open_ones = ("SELECT count(*) FROM outrigger_delivery"
                     " WHERE event_pk > ? AND state IN ('ready', 'blocked')")
        poll(lambda: one(open_ones, first)[0] == 0, within=within, sake="deliveries")
        through, done = one(
            "SELECT max(dispatched_at), sum(result_json ->> '$.t.outcome' = 'done')"
            " FROM outrigger_outbox WHERE pk > ? AND pk <= ?", first, self.last)
        later, self.spilled = one(
            "SELECT max(ended_at), count(*) FROM outrigger_delivery"
            " WHERE event_pk > ? AND event_pk <= ? AND state = 'done'", first, self.last)
        if done + self.spilled != events:
            raise RuntimeError(f"of {events} events only {done + self.spilled} are done")
        return max(through, later or 0) / 1000

    def tuples(self):
        return None

    def close(self):
        if self.db is not None:
            self.db.close()
        super().close()

    def discard(self):
        for ending in ("", "-wal", "-shm", ".host-lock"):
            try:
                os.remove(self.file + ending)
            except FileNotFoundError:
                pass


class Graphile:
    """graphile-worker, one process unless told otherwise."""

    database = "graphile"
    table = "graphile_worker._private_jobs"

    def __init__(self, bench, mode="fast", processes=1, task="noop", options=()):
        self.bench, self.mode, self.processes = bench, mode, processes
        self.task, self.options = task, options
        self.cluster = bench.cluster
        self.workers, self.watcher, self.writer = [], None, None

    def prepare(self):
        self.cluster.fresh(self.database)
        self.start(self.cluster.url(self.database))
        self.watcher = self.cluster.connect(self.database)
        self.writer = self.cluster.connect(self.database, autocommit=False)
        self.counted = 0

    def start(self, url):
        for _ in range(self.processes):
            self.workers.append(Worker(self.bench.node, "graphile.mjs", url,
                                       "--mode", self.mode, *self.options))

    def pids(self):
        return [worker.pid for worker in self.workers]

    def warm(self, events=500):
        self.record(events)
        self.commit()
        self.finished(events)
        time.sleep(1.0)

    def settle(self):
        self.cluster.settle(self.database)

    def record(self, events):
        """One call of `add_jobs`: `add_job` for each of them takes a time that
        grows with the square of their number within one transaction."""
        self.writer.execute(
            "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY("
            "  SELECT (%s, json_build_object('n', i), NULL, NULL, NULL, NULL, NULL, NULL)"
            "         ::graphile_worker.job_spec FROM generate_series(1, %s) i))",
            (self.task, events))

    def commit(self):
        self.writer.commit()
        return time.time()

    def finished(self, events, within=900.0):
        """The workers count what ran; then the table says when all is removed."""
        self.counted += events
        poll(lambda: sum(worker.count for worker in self.workers) >= self.counted
             or self._died(), every=0.005, within=within, sake=f"{events} jobs")
        left = f"SELECT 1 FROM {self.table} LIMIT 1"
        poll(lambda: self.watcher.execute(left).fetchone() is None, every=0.002,
             within=within, sake="the last jobs")
        end = time.time()
        ran = sum(worker.count for worker in self.workers)
        if ran != self.counted:
            raise RuntimeError(f"{ran} jobs ran instead of {self.counted}")
        return end

    def _died(self):
        if not all(worker.alive() for worker in self.workers):
            raise RuntimeError("a worker has ended")
        return False

    def tuples(self):
        return tuples(self.cluster, self.database, self.table)

    def close(self):
        for worker in self.workers:
            worker.stop()
        for connection in (self.watcher, self.writer):
            if connection is not None:
                connection.close()

    def discard(self):
        self.cluster.drop(self.database)


class PgBoss(Graphile):
    """pg-boss, fetching and completing in batches of 500."""

    database = "pgboss"
    table = "pgboss.job_common"

    def __init__(self, bench, loops=4, batch=500):
        super().__init__(bench)
        self.loops, self.batch = loops, batch

    def start(self, url):
        self.workers = [Worker(self.bench.node, "pgboss.mjs", url,
                               "--loops", str(self.loops), "--batch", str(self.batch))]

    def record(self, events):
        """The columns that its own insert sets for a job with no options."""
        self.writer.execute(
            "INSERT INTO pgboss.job (name, data, expire_seconds, deletion_seconds, keep_until,"
            "                        retry_limit, retry_delay, retry_backoff, policy)"
            " SELECT q.name, jsonb_build_object('n', i), q.expire_seconds, q.deletion_seconds,"
            "        now() + q.retention_seconds * interval '1s', q.retry_limit, q.retry_delay,"
            "        q.retry_backoff, q.policy"
            "   FROM pgboss.queue q, generate_series(1, %s) i WHERE q.name = 'noop'", (events,))

    def finished(self, events, within=900.0):
        self.counted += events
        worker = self.workers[0]
        poll(lambda: worker.count >= self.counted or self._died(), every=0.002,
             within=within, sake=f"{events} jobs")
        end = worker.counted_at
        done = self.watcher.execute(
            "SELECT count(*) FROM pgboss.job WHERE state = 'completed'").fetchone()[0]
        if done != self.counted:
            raise RuntimeError(f"{done} jobs are completed instead of {self.counted}")
        return end
