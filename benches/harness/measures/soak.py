"""Half of the rate that lasts, for a long time: whether anything grows."""

import time

from ..load import Load, events, percentile
from ..subjects import PROJECT, OutriggerPostgres
from .latency import COMMITTED

TRANSACTION = 20
WAITING = 4_000


class Soak:
    """Runs only where --soak says how long. Events are kept for a minute, so
    that from the second minute on as many are deleted as come in."""

    name = "soak"

    def subjects(self, bench):
        if bench.soak:
            yield f"soak of {bench.soak // 60} min", lambda: self.run(bench)

    def peak(self, bench):
        """Events a second that can be recorded, on the same two cores, while
        no more than some wait: a drain has them recorded beforehand."""
        subject = OutriggerPostgres(bench)
        try:
            subject.prepare()
            subject.warm()
            subject.settle()
            began, recorded = time.monotonic(), 0
            while time.monotonic() - began < (20 if bench.soak >= 60 else 5):
                if self.waiting(subject) < WAITING:
                    subject.record(WAITING // 4)
                    subject.commit()
                    recorded += WAITING // 4
                else:
                    time.sleep(0.005)
            return round(recorded / (time.monotonic() - began), 1)
        finally:
            subject.close()
            subject.discard()

    @staticmethod
    def waiting(subject):
        return subject.watcher.execute(
            "SELECT count(*) FROM outrigger_outbox WHERE dispatched_at IS NULL"
        ).fetchone()[0]

    def run(self, bench):
        peak = self.peak(bench)
        rate = peak / 2
        subject = OutriggerPostgres(bench, settings={"OUTRIGGER_RETENTION": "60s"})
        try:
            subject.prepare()
            subject.warm()
            subject.settle()
            load = Load(bench, subject.database, events(TRANSACTION), bench.soak,
                        rate / TRANSACTION)
            minutes, samples = self.watch(subject, load, bench.soak)
            made = load.finish() * TRANSACTION
        finally:
            subject.close()
            subject.discard()
        second, last = minutes[min(1, len(minutes) - 1)], minutes[-1]
        ratios = {name: round(last[name] / second[name], 3)
                  for name in ("rssBytes", "bytesPerRow", "p99") if second[name]}
        return {"peak": peak, "rate": made, "lastToSecondMinute": ratios,
                "minutes": minutes, "samples": samples}

    def watch(self, subject, load, seconds):
        """Looks every five seconds, and sums up every minute."""
        began, samples, minutes = time.monotonic(), [], []
        first = subject.last
        while time.monotonic() - began < seconds and load.process.poll() is None:
            time.sleep(5)
            samples.append({"at": round(time.monotonic() - began, 1)} | self.look(subject))
            if time.monotonic() - began >= 60 * (len(minutes) + 1):
                of_this = samples[len(samples) * len(minutes) // (len(minutes) + 1):]
                delays, first = self.delays(subject, first)
                minutes.append({"minute": len(minutes) + 1, "events": len(delays),
                                "p50": round(percentile(delays, 0.5), 3),
                                "p99": round(percentile(delays, 0.99), 3),
                                "rssBytes": self.middle(of_this, "rssBytes"),
                                "bytesPerRow": self.middle(of_this, "bytesPerRow"),
                                "liveRows": of_this[-1]["liveRows"]})
                print(f"  {minutes[-1]}", flush=True)
        if not minutes:
            raise RuntimeError("a soak takes a minute at least")
        return minutes, samples

    @staticmethod
    def middle(samples, name):
        values = sorted(sample[name] for sample in samples)
        return values[len(values) // 2]

    @staticmethod
    def look(subject):
        size, live, waiting = subject.watcher.execute(
            "SELECT pg_total_relation_size('outrigger_outbox')::float8, count(*),"
            "       count(*) FILTER (WHERE dispatched_at IS NULL) FROM outrigger_outbox"
        ).fetchone()
        return {"rssBytes": subject.host.rss_bytes(), "tableBytes": size, "liveRows": live,
                "waiting": waiting, "bytesPerRow": round(size / max(live, 1), 1)}

    @staticmethod
    def delays(subject, first):
        """Milliseconds from commit to settle of the events since `first`."""
        committed = COMMITTED.format("o.payload_json->>'key'")
        rows = subject.watcher.execute(
            "SELECT extract(epoch FROM pg_xact_commit_timestamp(o.xmin))::float8 - "
            f"{committed}, o.pk FROM outrigger_outbox o"
            " WHERE o.project_id = %s AND o.pk > %s AND o.dispatched_at IS NOT NULL"
            " AND o.pk % 10 = 0 ORDER BY o.pk".replace("% 10", "%% 10"),
            (PROJECT, first)).fetchall()
        if not rows:
            raise RuntimeError("no event was settled within a minute")
        return sorted(row[0] * 1000 for row in rows), rows[-1][1]
