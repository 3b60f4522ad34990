"""How fast a backlog is worked off, and what that costs."""

import json
import subprocess

from ..cluster import Usage
from ..subjects import Graphile, OutriggerPostgres, OutriggerSqlite, PgBoss


def drain(subject, events):
    """Starts a subject on a fresh database, records a backlog in one
    transaction, and times from that commit to the last acknowledgement."""
    try:
        subject.prepare()
        subject.warm()
        subject.settle()
        subject.record(events)
        usage = Usage(subject.cluster, subject.database, subject.pids())
        begin = subject.commit()
        end = subject.finished(events)
        cost = usage.since()
        figures = {"events": events, "seconds": round(end - begin, 4),
                   "perSecond": round(events / (end - begin), 1), "cost": cost}
        if getattr(subject, "spilled", 0):
            figures["spilled"] = subject.spilled
        # Backends tell what they did to rows when they end.
        subject.close()
        counts = subject.tuples()
        if counts is not None:
            figures["rows"] = counts
        return figures
    finally:
        subject.close()
        subject.discard()


def each(figures):
    """What one event costs."""
    events, cost = figures["events"], figures["cost"]
    out = {"processCpuMicros": cost["processCpu"] / events * 1e6}
    if "serverCpu" in cost:
        out |= {"serverCpuMicros": cost["serverCpu"] / events * 1e6,
                "walBytes": cost["walBytes"] / events, "commits": cost["commits"] / events,
                "deadRows": figures["rows"]["dead"] / events,
                "updates": figures["rows"]["updated"] / events,
                "updatesInPlace": figures["rows"]["updatedInPlace"] / events}
    return {name: round(value, 4) for name, value in out.items()}


class Drain:
    """Outrigger's drain, ordered, as a user has it who sets nothing."""

    name = "drain"

    def subjects(self, bench):
        sizes = bench.sizes
        for size in sizes:
            label = count(size)
            yield f"outrigger-postgres {label}", lambda n=size: self.one(
                OutriggerPostgres(bench), n)
        yield f"outrigger-sqlite {count(bench.events)}", lambda: self.one(
            OutriggerSqlite(bench), bench.events)

    @staticmethod
    def one(subject, events):
        figures = drain(subject, events)
        return figures | {"each": each(figures)}


class Competitors:
    """The other queues, on the same server."""

    name = "competitors"

    def subjects(self, bench):
        label = count(bench.events)
        one = Drain.one
        yield f"graphile-worker {label}", lambda: one(Graphile(bench), bench.events)
        # Ten times the queue that its documentation uses costs it less than half
        # per job where the backlog is long.
        yield f"graphile-worker-tuned {label}", lambda: one(
            Graphile(bench, options=("--queue", "5000")), bench.events)
        # Its default mode takes a transaction for every job: a tenth is enough.
        few = max(bench.events // 10, 1000)
        yield f"graphile-worker-default {count(few)}", lambda: one(
            Graphile(bench, mode="default"), few)
        yield f"pg-boss {label}", lambda: one(PgBoss(bench), bench.events)
        yield f"pg-boss-one-loop {label}", lambda: one(PgBoss(bench, loops=1), bench.events)


class Ceiling:
    """The same claims and settles with no router and no guest."""

    name = "ceiling"

    def subjects(self, bench):
        label = count(bench.events)
        yield f"ceiling-postgres {label}", lambda: self.postgres(bench)
        yield f"ceiling-sqlite {label}", lambda: self.sqlite(bench)

    def postgres(self, bench):
        name = bench.cluster.fresh("ceiling")
        try:
            return self.probe(bench, bench.cluster.url(name))
        finally:
            bench.cluster.drop(name)

    def sqlite(self, bench):
        return self.probe(bench, f"sqlite:{bench.scratch('ceiling.db')}")

    @staticmethod
    def probe(bench, url):
        if bench.probe is None:
            return {"notAvailable": "there is no probe"}
        answer = subprocess.run(
            [bench.probe, "ceiling", "--database-url", url, "--events", str(bench.events)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=900)
        return json.loads(answer.stdout.strip().splitlines()[-1])


def count(number):
    """10000 as 10k, 1000000 as 1M."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if number >= size and number % (size // 10) == 0:
            return f"{number / size:g}{unit}"
    return str(number)
