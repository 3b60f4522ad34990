"""The PostgreSQL cluster that everything is measured on."""

import time

import psycopg

from . import procs


class Cluster:
    """A running server of the benchmark's own: each measurement gets a database
    of its own in it, so that none pays for another's litter."""

    def __init__(self, url, folder):
        self.base = url.rsplit("/", 1)[0]
        self.folder = folder
        with open(f"{folder}/data/postmaster.pid", encoding="utf-8") as file:
            self.pid = int(file.readline())

    def url(self, database="postgres"):
        return f"{self.base}/{database}"

    def connect(self, database="postgres", **options):
        """A connection in autocommit mode unless told otherwise."""
        options.setdefault("autocommit", True)
        return psycopg.connect(self.url(database), **options)

    def fresh(self, name):
        """Makes an empty database, in place of an older one of that name."""
        self.drop(name)
        with self.connect() as db:
            db.execute(f'CREATE DATABASE "{name}"')
        return name

    def drop(self, name):
        with self.connect() as db:
            db.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def settle(self, name):
        """Vacuums and writes everything out, so that none of it is done later."""
        with self.connect(name) as db:
            db.execute("VACUUM (ANALYZE)")
            db.execute("CHECKPOINT")

    def cpu_seconds(self):
        """CPU time of all of its processes together."""
        return procs.tree_cpu_seconds(self.pid)

    def version(self):
        with self.connect() as db:
            return db.execute("SHOW server_version").fetchone()[0]

    def settings(self):
        """What differs from PostgreSQL's defaults, and what matters here."""
        names = ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers",
                 "max_wal_size", "checkpoint_timeout", "max_connections",
                 "track_commit_timestamp", "autovacuum", "jit", "wal_level"]
        with self.connect() as db:
            rows = db.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)",
                (names,)).fetchall()
        return dict(sorted(rows))


class Usage:
    """What a stretch of work costs: CPU of the processes and of the server,
    write-ahead log, commits."""

    def __init__(self, cluster, database, pids):
        self.cluster, self.database, self.pids = cluster, database, pids
        self.before = self._look()

    def _look(self):
        now = {"processCpu": sum(procs.cpu_seconds(pid) for pid in self.pids)}
        if self.cluster is not None:
            now["serverCpu"] = self.cluster.cpu_seconds()
            with self.cluster.connect() as db:
                wal, commits = db.execute(
                    "SELECT pg_current_wal_insert_lsn() - '0/0',"
                    " (SELECT xact_commit FROM pg_stat_database WHERE datname = %s)",
                    (self.database,)).fetchone()
            now["walBytes"], now["commits"] = float(wal), float(commits)
        return now

    def since(self):
        now = self._look()
        return {name: round(now[name] - before, 3) for name, before in self.before.items()}


def tuples(cluster, database, table):
    """Row versions that a table has seen, once its backends have told."""
    with cluster.connect(database) as db:
        row = db.execute(
            "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, n_dead_tup"
            "  FROM pg_stat_user_tables WHERE relid = %s::regclass", (table,)).fetchone()
    names = ["inserted", "updated", "updatedInPlace", "deleted", "dead"]
    return dict(zip(names, row or [0] * len(names)))


def poll(what, every=0.05, within=900.0, sake=""):
    """Waits until `what` answers something true, and answers that."""
    end = time.monotonic() + within
    while True:
        answer = what()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within:.0f} s: {sake}")
        time.sleep(every)
