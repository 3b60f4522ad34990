"""How fast events are recorded: by INSERT, and over HTTP."""

import json
import os
import subprocess

from ..host import KEY
from ..load import EVENT, Load, events
from ..subjects import PROJECT, OutriggerPostgres, OutriggerSqlite

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(__file__)), "api_load.mjs")

# The host records and delivers nothing meanwhile, and isn't told of events: a
# notification lets one transaction commit at a time, and is sent while a host
# has nothing to do, which one that works doesn't.
RECORDS_ONLY = {"OUTRIGGER_PROJECTS": "none", "OUTRIGGER_WAKE": "poll"}


class Recording:
    name = "recording"

    def subjects(self, bench):
        seconds = bench.share(10, 3)
        for beside, settings in (("", RECORDS_ONLY), (", beside a host that delivers", {})):
            yield f"INSERT, one in a transaction{beside}", lambda s=settings: self.insert(
                bench, EVENT, 1, seconds, s)
            yield f"INSERT, 100 in a transaction{beside}", lambda s=settings: self.insert(
                bench, events(100), 100, seconds, s)
        for database, subject in (("PostgreSQL", OutriggerPostgres), ("SQLite", OutriggerSqlite)):
            for batch in (1, 100):
                label = "one in a request" if batch == 1 else f"{batch} in a request"
                yield f"HTTP on {database}, {label}", lambda s=subject, b=batch: self.http(
                    s(bench, settings=RECORDS_ONLY), bench, b, seconds)

    @staticmethod
    def insert(bench, script, each, seconds, settings):
        subject = OutriggerPostgres(bench, settings=settings)
        try:
            subject.prepare()
            subject.settle()
            rate = Load(bench, subject.database, script, seconds).finish()
            return {"transactionsPerSecond": round(rate, 1), "perSecond": round(rate * each, 1)}
        finally:
            subject.close()
            subject.discard()

    @staticmethod
    def http(subject, bench, batch, seconds):
        try:
            subject.prepare()
            subject.settle()
            done = subprocess.run(
                [bench.node, PROGRAM, "--address", subject.host.address, "--key", KEY,
                 "--project", PROJECT, "--batch", str(batch), "--seconds", str(seconds)],
                check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + 60)
            return json.loads(done.stdout)
        finally:
            subject.close()
            subject.discard()
