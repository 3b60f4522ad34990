"""How fast events are recorded: by INSERT, and over HTTP."""

import json
import os
import subprocess

from ..host import KEY
from ..load import EVENT, Load, events
from ..subjects import PROJECT, OutriggerPostgres, OutriggerSqlite

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(__file__)), "api_load.mjs")

# The host records and delivers nothing meanwhile: that is another measure.
RECORDS_ONLY = {"OUTRIGGER_PROJECTS": "none"}


class Recording:
    name = "recording"

    def subjects(self, bench):
        seconds = bench.share(10, 3)
        yield "INSERT, one in a transaction", lambda: self.insert(bench, EVENT, 1, seconds)
        yield "INSERT, 100 in a transaction", lambda: self.insert(bench, events(100), 100, seconds)
        for database, subject in (("PostgreSQL", OutriggerPostgres), ("SQLite", OutriggerSqlite)):
            for batch in (1, 100):
                label = "one in a request" if batch == 1 else f"{batch} in a request"
                yield f"HTTP on {database}, {label}", lambda s=subject, b=batch: self.http(
                    s(bench, settings=RECORDS_ONLY), bench, b, seconds)

    @staticmethod
    def insert(bench, script, each, seconds):
        subject = OutriggerPostgres(bench, settings=RECORDS_ONLY)
        subject.prepare()
        try:
            subject.settle()
            rate = Load(bench, subject.database, script, seconds).finish()
            return {"transactionsPerSecond": round(rate, 1), "perSecond": round(rate * each, 1)}
        finally:
            subject.close()
            subject.discard()

    @staticmethod
    def http(subject, bench, batch, seconds):
        subject.prepare()
        try:
            subject.settle()
            done = subprocess.run(
                [bench.node, PROGRAM, "--address", subject.host.address, "--key", KEY,
                 "--project", PROJECT, "--batch", str(batch), "--seconds", str(seconds)],
                check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + 60)
            return json.loads(done.stdout)
        finally:
            subject.close()
            subject.discard()
