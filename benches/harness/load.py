"""Applications that record at a steady rate: pgbench, which PostgreSQL brings."""

import os
import re
import subprocess

# Every transaction is one event and carries its own id, by which the server
# knows to the microsecond when it committed (track_commit_timestamp).
KEY = "json_build_object('key', pg_current_xact_id()::text)"

EVENT = f"""\\set n random(1, 10000)
INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name, payload_json)
VALUES ('bench', 'order', 'o-' || :n, 'order.placed', {KEY});
"""

JOB = f"SELECT graphile_worker.add_job('clock', {KEY});\n"


def events(number):
    """A transaction that records so many events at once."""
    return f"""INSERT INTO outrigger_outbox
    (project_id, resource, aggregate_id, event_name, payload_json)
SELECT 'bench', 'order', 'o-' || (random() * 10000)::integer, 'order.placed', {KEY}
  FROM generate_series(1, {number});
"""


def jobs(number):
    """A transaction that adds so many jobs at once."""
    return f"""SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT ('clock', {KEY}, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec
      FROM generate_series(1, {number})));
"""


class Load:
    """A pgbench that is running."""

    def __init__(self, bench, database, script, seconds, rate=None, clients=32):
        path = bench.scratch("load.sql")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        command = [os.path.join(bench.postgres_bin, "pgbench"), "-n", "-M", "prepared",
                   "-c", str(clients), "-j", "1", "-T", str(seconds), "-f", path]
        if rate is not None:
            command += ["-R", f"{rate:g}"]
        self.process = subprocess.Popen(command + [bench.cluster.url(database)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self):
        """Waits for its end, and answers the transactions a second that it made."""
        out, complaint = self.process.communicate()
        found = re.search(r"^tps = ([0-9.]+)", out, re.MULTILINE)
        if self.process.returncode != 0 or not found:
            raise RuntimeError(f"pgbench: {complaint or out}")
        return float(found.group(1))


def percentile(values, share):
    """The value that this share of them is no larger than; `values` is sorted."""
    return values[min(len(values) - 1, int(share * len(values)))]


def spread(values):
    """Percentiles in milliseconds, of seconds."""
    values = sorted(value * 1000 for value in values)
    if not values:
        raise RuntimeError("nothing was measured")
    return {"count": len(values), "p50": round(percentile(values, 0.5), 3),
            "p90": round(percentile(values, 0.9), 3), "p99": round(percentile(values, 0.99), 3),
            "max": round(values[-1], 3)}
