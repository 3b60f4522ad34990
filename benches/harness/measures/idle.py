"""What processes with nothing to do cost: queries, CPU time, memory."""

import time

from .. import procs
from ..subjects import PROJECT, Graphile, OutriggerPostgres, OutriggerSqlite


def variant(component, number):
    """The same component with another digest: a custom section says a number."""
    name, text = b"variant", str(number).encode()
    body = bytes([len(name)]) + name + text
    return component + bytes([0, len(body)]) + body


class Filled:
    """With a number of plugins, each of which has run."""

    def fill(self, plugins):
        component = self.bench.plugin("noop")
        for number in range(plugins):
            name = f"p{number}"
            self.host.plugin(PROJECT, name, variant(component, number))
            self.host.trigger(PROJECT, name, name)
        if plugins:
            answer = self.host.ok("POST", f"/v1/projects/{PROJECT}/events?wait=60s", {
                "resource": "order", "aggregateId": "o-1", "eventName": "order.placed",
                "payload": {}})
            done = sum(state == "done" for state in answer["triggers"].values())
            if done != plugins + 1:
                raise RuntimeError(f"{done} of {plugins + 1} plugins ran: {answer}")


class FilledPostgres(Filled, OutriggerPostgres):
    pass


class FilledSqlite(Filled, OutriggerSqlite):
    pass


class Logged:
    """Statements that PostgreSQL executes in a database, by its own log."""

    def __init__(self, bench, database):
        self.path = f"{bench.cluster.folder}/server.log"
        self.marks = (f"/{database}/LOG:  statement: ", f"/{database}/LOG:  execute ")
        with open(self.path, "rb") as file:
            self.start = file.seek(0, 2)

    def count(self):
        with open(self.path, "rb") as file:
            file.seek(self.start)
            text = file.read().decode(errors="replace")
        return sum(text.count(mark) for mark in self.marks)


def log_statements(cluster, database):
    """In sessions that begin from now on."""
    with cluster.connect() as db:
        db.execute(f'ALTER DATABASE "{database}" SET log_statement = \'all\'')


class LoggedPostgres(FilledPostgres):
    def start(self, url):
        log_statements(self.cluster, self.database)
        super().start(url)


class LoggedGraphile(Graphile):
    def start(self, url):
        log_statements(self.cluster, self.database)
        super().start(url)


class Idle:
    """All at the same time, since none of them does anything."""

    name = "idle"
    plugins = 20

    def subjects(self, bench):
        self.found = None
        for name in ("outrigger-postgres", "outrigger-sqlite", "graphile-worker"):
            yield name, lambda n=name: self.of(bench, n)

    def of(self, bench, name):
        if self.found is None:
            self.found = self.look(bench)
        return self.found[name]

    def look(self, bench):
        seconds = bench.share(60, 10)
        subjects = {"outrigger-postgres": LoggedPostgres(bench),
                    "outrigger-sqlite": FilledSqlite(bench),
                    "graphile-worker": LoggedGraphile(bench)}
        try:
            for subject in subjects.values():
                subject.prepare()
                subject.warm()
            for name in ("outrigger-postgres", "outrigger-sqlite"):
                subjects[name].fill(self.plugins)
            time.sleep(bench.share(15, 5))
            logs = {name: Logged(bench, subject.database)
                    for name, subject in subjects.items() if subject.cluster}
            began = time.monotonic()
            cpu = {name: procs.cpu_seconds(subject.pids()[0])
                   for name, subject in subjects.items()}
            time.sleep(seconds)
            took = time.monotonic() - began
            found = {}
            for name, subject in subjects.items():
                pid = subject.pids()[0]
                found[name] = {"seconds": round(took, 2),
                               "cpuSeconds": round(procs.cpu_seconds(pid) - cpu[name], 3),
                               "rssBytes": procs.rss_bytes(pid)}
                if name in logs:
                    number = logs[name].count()
                    found[name] |= {"queries": number,
                                    "queriesPerSecond": round(number / took, 3)}
            return found
        finally:
            for subject in subjects.values():
                subject.close()
                subject.discard()


class Memory:
    """Resident memory: idle with more and more plugins, and under load."""

    name = "memory"

    def subjects(self, bench):
        for plugins in (0, 20, 100):
            yield f"outrigger-postgres {plugins} plugins", lambda n=plugins: self.idle(
                FilledPostgres(bench), n)
        yield "outrigger-sqlite 20 plugins", lambda: self.idle(FilledSqlite(bench), 20)
        yield "graphile-worker idle", lambda: self.idle(Graphile(bench), None)
        events = bench.share(200_000, 10_000)
        yield "outrigger-postgres under load", lambda: self.load(OutriggerPostgres(bench), events)
        yield "outrigger-sqlite under load", lambda: self.load(OutriggerSqlite(bench), events)
        yield "graphile-worker under load", lambda: self.load(Graphile(bench), events)

    @staticmethod
    def idle(subject, plugins):
        try:
            subject.prepare()
            if plugins is None:
                subject.warm()
            elif plugins:
                subject.fill(plugins)
            time.sleep(5)
            return {"rssBytes": procs.rss_bytes(subject.pids()[0])}
        finally:
            subject.close()
            subject.discard()

    @staticmethod
    def load(subject, events):
        try:
            subject.prepare()
            subject.warm()
            subject.record(events)
            watch = procs.Peak(subject.pids()[0])
            subject.commit()
            subject.finished(events)
            return {"events": events, "rssBytes": watch.stop()}
        finally:
            subject.close()
            subject.discard()
