"""The application of `scripts/demo`, and what the demo then looks at.

It knows nothing of the host but the outbox table: on SQLite it writes with
Python's own sqlite3 module, on PostgreSQL with psql. Afterwards it asks the
host over HTTP what became of the events.
"""

import json
import os
import sqlite3
import subprocess
import time
import urllib.request

URL = os.environ["OUTRIGGER_DEMO_URL"]
API = os.environ["OUTRIGGER_URL"] + "/v1/projects/shop"
KEY = os.environ["OUTRIGGER_KEY"]

ORDER = """
    INSERT INTO orders (id, customer, total) VALUES ('{order}', 'c-1', {total});
    INSERT INTO outrigger_outbox (project_id, resource, aggregate_id, event_name, payload_json)
    VALUES ('shop', 'order', '{order}', 'order.placed',
            '{{"orderId": "{order}", "customer": "c-1", "total": {total}}}');
"""


def run(script):
    """Runs statements in the application's database."""
    if URL.startswith("sqlite:"):
        with sqlite3.connect(URL.removeprefix("sqlite:")) as database:
            database.executescript(script)
    else:
        psql = [os.environ["PSQL"], URL, "-qX", "-v", "ON_ERROR_STOP=1"]
        subprocess.run(psql, input=script, text=True, check=True)


def get(path):
    request = urllib.request.Request(API + path, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def wait_for(what, look, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.002)
    raise SystemExit(f"after {seconds} s there is no {what}")


def events(query):
    return get("/events?" + query)["items"]


def settled(order):
    found = events(f"aggregateId={order}&status=dispatched")
    return found[0] if found else None


def show(title, value):
    print(f"\n  {title}:")
    for line in value:
        print(f"    {line}")


def details_of(event):
    return get(f"/events/{event['messageId']}")


def log_of(event):
    details = details_of(event)
    return [
        f"[{attempt['trigger']}] {line['level']}: {line['text']}"
        for attempt in details["attempts"]
        for line in attempt["logs"]
    ]


def main():
    run("CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT NOT NULL, total INTEGER NOT NULL)")
    print(ORDER.format(order="o-1", total=700))

    run("BEGIN;" + ORDER.format(order="o-1", total=700) + "COMMIT;")
    event = wait_for("settled event", lambda: settled("o-1"))
    show("the trigger's log", log_of(event))
    show("its state", [f"{e['key']} = {e['value']}" for e in get("/triggers/totals/state")["items"]])

    run("BEGIN;" + ORDER.format(order="o-2", total=500) + "COMMIT;")
    wait_for("settled event", lambda: settled("o-2"))
    milestone = wait_for(
        "handled follow-up event",
        lambda: events("eventName=customer.milestone&status=dispatched"),
    )[0]
    show("the follow-up event that the trigger emitted", [json.dumps(details_of(milestone)["payload"])])
    show("the log of the second trigger, which handled it", log_of(milestone))

    run("BEGIN;" + ORDER.format(order="o-rolled-back", total=9000) + "ROLLBACK;")
    time.sleep(0.5)
    nothing = events("aggregateId=o-rolled-back")
    show("events of a transaction that was rolled back", [str(len(nothing))])
    if nothing:
        raise SystemExit("an event of a rolled-back transaction is there")

    took = []
    for n in range(20):
        run("BEGIN;" + ORDER.format(order=f"t-{n}", total=1) + "COMMIT;")
        event = wait_for("settled event", lambda: settled(f"t-{n}"))
        took.append(event["dispatchedAt"] - event["createdAt"])
    took.sort()
    show(
        "from the INSERT to the settled result, by the database's clock, of 20 events",
        [f"median {took[len(took) // 2]} ms, longest {took[-1]} ms"],
    )


main()
