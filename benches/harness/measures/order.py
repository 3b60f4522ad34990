"""What order, clutter, a snapshot and further hosts do to the rate."""

from ..cluster import poll
from ..subjects import OutriggerPostgres
from .drain import drain, each


class Order:
    """In order over many aggregates, over some, over one, against no order."""

    name = "order"

    def subjects(self, bench):
        events = bench.share(100_000, 10_000)
        for label, aggregates, more in (("10k aggregates", 10_000, {}),
                                        ("100 aggregates", 100, {}),
                                        ("one hot key", 1, {}),
                                        ("unordered", 10_000, {"order": "none"})):
            yield label, lambda a=aggregates, m=more: drain(
                OutriggerPostgres(bench, aggregates=a, trigger=m), events)


class Cluttered(OutriggerPostgres):
    """Tables with 1,000,000 dispatched events, of which 100,000 are dead letters
    and 100,000 wait for a trigger that is paused, nearly all of them blocked."""

    def __init__(self, bench, rows):
        super().__init__(bench)
        self.rows = rows

    def prepare(self):
        super().prepare()
        self.define("shop", "noop")
        self.host.ok("POST", "/v1/projects/shop/triggers/t/pause")
        with self.cluster.connect(self.database) as db:
            db.execute(
                "INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name,"
                "       payload_json, dispatched_at, result_json)"
                " SELECT 'shop', 'old', 'o-' || (i %% 1000), 'order.placed', '{}',"
                "        (SELECT max(created_at) FROM outrigger_project), '{}'"
                "   FROM generate_series(1, %s) i", (self.rows,))
            # The first of each key waits for its trigger, the others for it.
            for trigger, state, which in (
                    ("gone", "'dead'", 1),
                    ("t", "CASE WHEN row_number() OVER (PARTITION BY aggregate_id ORDER BY pk)"
                          " = 1 THEN 'ready' ELSE 'blocked' END", 2)):
                db.execute(
                    "INSERT INTO outrigger_delivery (event_pk, message_id, project_id,"
                    "       trigger_name, resource, aggregate_id, event_name, lane, chain, state,"
                    "       cause, attempts, due_at, created_at, last_kind, last_error, ended_at)"
                    f" SELECT pk, message_id, project_id, '{trigger}', resource, aggregate_id,"
                    f"        event_name, lane, 1, {state}, 'failed', 1, created_at, created_at,"
                    "        'retry', 'not now',"
                    "        CASE WHEN %s = 1 THEN created_at END"
                    "   FROM outrigger_outbox WHERE resource = 'old' AND pk %% 10 = %s",
                    (which, which))
            dead, blocked = db.execute(
                "SELECT count(*) FILTER (WHERE state = 'dead'),"
                "       count(*) FILTER (WHERE state = 'blocked')"
                "  FROM outrigger_delivery").fetchone()
        if dead < self.rows // 10 or blocked < self.rows // 10 - 1000:
            raise RuntimeError(f"only {dead} dead and {blocked} blocked deliveries")


class Snapshot(OutriggerPostgres):
    """A transaction that somebody else has left open: nothing can be vacuumed."""

    held = None

    def prepare(self):
        super().prepare()
        self.held = self.cluster.connect(self.database, autocommit=False)
        self.held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.held.execute("SELECT count(*) FROM outrigger_outbox")

    def close(self):
        if self.held is not None:
            self.held.close()
        super().close()


class Clutter:
    """Empty tables against full ones, and against a snapshot that is held."""

    name = "clutter"

    def subjects(self, bench):
        events = bench.share(100_000, 10_000)
        rows = bench.share(1_000_000, 100_000)
        yield "empty tables", lambda: drain(OutriggerPostgres(bench), events)
        yield "cluttered tables", lambda: drain(Cluttered(bench, rows), events)
        yield "snapshot held", lambda: drain(Snapshot(bench), events)


class Shared(OutriggerPostgres):
    """Several hosts, once the lanes are theirs in equal parts."""

    def warm(self, events=500):
        poll(lambda: self.watcher.execute(
            "SELECT count(DISTINCT holder) FROM outrigger_lane"
            " WHERE holder IS NOT NULL").fetchone()[0] == self.number,
             within=180.0, sake="all hosts hold lanes")
        super().warm(events * self.number)


class Hosts:
    """One, two and four hosts on one machine."""

    name = "hosts"

    def subjects(self, bench):
        events = bench.share(200_000, 10_000)
        for number in (1, 2, 4):
            label = "1 host" if number == 1 else f"{number} hosts"
            yield label, lambda n=number: self.one(Shared(bench, hosts=n), events)

    @staticmethod
    def one(subject, events):
        figures = drain(subject, events)
        return figures | {"each": each(figures)}
