"""Tables and plots, from the results that are there."""

import json
import os

from . import ratios, svg

MIB = 1 << 20

# Per measure: its heading, and of each column the title, the figure's path,
# what to divide it by, and how many decimals it has.
TABLES = {
    "drain": ("Draining a backlog", "RATE"),
    "competitors": ("Other queues on the same server", "RATE"),
    "ceiling": ("The same claims and settles alone", "RATE"),
    "latency": ("From commit to the handler's start, and to settled, in ms", [
        ("events/s", "rate", 1, 0), ("start p50", "start.p50", 1, 2),
        ("start p99", "start.p99", 1, 2), ("settled p50", "settled.p50", 1, 2),
        ("settled p99", "settled.p99", 1, 2), ("left behind", "left", 1, 0)]),
    "order": ("Order", "RATE"),
    "clutter": ("Clutter", "RATE"),
    "hosts": ("Hosts on one machine", "RATE"),
    "sandbox": ("One call, in µs of one thread", [
        ("bare", "bare.microseconds", 1, 2), ("executor", "executor.microseconds", 1, 2),
        ("ratio", "ratio", 1, 3)]),
    "guests": ("Languages", "RATE"),
    "recording": ("Recording", [
        ("events/s", "perSecond", 1, 0), ("request p50, ms", "p50", 1, 2),
        ("request p99, ms", "p99", 1, 2)]),
    "memory": ("Memory", [("MiB resident", "rssBytes", MIB, 1)]),
    "idle": ("Idle", [
        ("queries/s", "queriesPerSecond", 1, 2), ("CPU s", "cpuSeconds", 1, 2),
        ("in s", "seconds", 1, 0), ("MiB resident", "rssBytes", MIB, 1)]),
    "soak": ("Soak", [
        ("events/s", "rate", 1, 0), ("memory, last : second minute", "lastToSecondMinute.rssBytes",
                                     1, 3),
        ("bytes a row", "lastToSecondMinute.bytesPerRow", 1, 3),
        ("p99", "lastToSecondMinute.p99", 1, 3)]),
}
RATE = [("events", "events", 1, 0), ("seconds", "seconds", 1, 2), ("events/s", "perSecond", 1, 0),
        ("process CPU, µs each", "each.processCpuMicros", 1, 1),
        ("server CPU, µs each", "each.serverCpuMicros", 1, 1),
        ("WAL bytes each", "each.walBytes", 1, 0), ("commits each", "each.commits", 1, 4),
        ("row updates each", "each.updates", 1, 2), ("dead rows each", "each.deadRows", 1, 2)]


def write(results, plots):
    """Writes results/report.md and the plots; prints the ratios."""
    documents = {}
    for name in TABLES:
        path = os.path.join(results, f"{name}.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                documents[name] = json.load(file)
    if not documents:
        print("there are no results yet")
        return 1
    table = ratios.table(documents)
    text = "\n".join(head(documents) + ratio_lines(table) + measure_lines(documents)) + "\n"
    with open(os.path.join(results, "report.md"), "w", encoding="utf-8") as file:
        file.write(text)
    os.makedirs(plots, exist_ok=True)
    for name, plot in draw(documents).items():
        if plot is not None:
            with open(os.path.join(plots, f"{name}.svg"), "w", encoding="utf-8") as file:
                file.write(plot)
    print()
    for what, middle, _, _, rule, bound, holds in table:
        if middle is not None:
            print(f"{WORDS[holds]:5}  {what}: {middle:.3g} {limit(rule, bound)}")
    return 0


WORDS = {True: "ok", False: "short", None: ""}


def limit(rule, bound):
    return "" if bound is None else f"{rule} {bound:g}"


def head(documents):
    """Where the figures come from; measures may come from several runs."""
    some = max(documents.values(), key=lambda document: document["at"])
    machine, versions = some["machine"], some["versions"]
    runs = sorted({document["at"] for document in documents.values()})
    lines = [f"{machine['cores']} cores of {machine['cpu']}, "
             f"{machine['memoryBytes'] / (1 << 30):.0f} GiB, {machine['system']}, "
             f"Linux {machine['kernel']}.",
             "; ".join(f"{name} {version}" for name, version in versions.items() if version) + ".",
             f"Run at {', '.join(runs)}."]
    if any(document["quick"] for document in documents.values()):
        lines.append("Some of this is from a quick run of small numbers: no figure to go by.")
    return lines + [""]


def ratio_lines(table):
    lines = ["| Ratio | Median | Rounds | Bound | |", "|---|---|---|---|---|"]
    for what, middle, least, most, rule, bound, holds in table:
        if middle is None:
            lines.append(f"| {what} | | | {limit(rule, bound)} | not measured |")
        else:
            lines.append(f"| {what} | {middle:.3g} | {least:.3g} – {most:.3g} |"
                         f" {limit(rule, bound)} | {WORDS[holds]} |")
    return lines + [""]


def measure_lines(documents):
    lines = []
    for name, (title, columns) in TABLES.items():
        if name not in documents:
            continue
        columns = RATE if columns == "RATE" else columns
        subjects = documents[name]["subjects"]
        used = [column for column in columns
                if any(ratios.pick(subject["median"], column[1]) is not None
                       for subject in subjects.values())]
        rounds = max(len(subject["rounds"]) for subject in subjects.values())
        lines += [f"## {title}", "", f"Medians of {rounds}." if rounds > 1 else "One round.", "",
                  "| | " + " | ".join(column[0] for column in used) + " |",
                  "|---" * (len(used) + 1) + "|"]
        for label, subject in subjects.items():
            median = subject["median"]
            if "notAvailable" in median or "failed" in median:
                why = median.get("notAvailable") or f"failed: {median['failed']}"
                lines.append(f"| {label} | {why} |" + " |" * (len(used) - 1))
                continue
            cells = []
            for _, path, unit, decimals in used:
                value = ratios.pick(median, path)
                cells.append("" if value is None else f"{value / unit:,.{decimals}f}")
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def draw(documents):
    """The plots by their names."""
    def rows(measures, path, unit=1.0):
        found = []
        for measure in measures:
            for label, subject in documents.get(measure, {}).get("subjects", {}).items():
                value = ratios.pick(subject["median"], path)
                if value is not None:
                    found.append((label, [value / unit]))
        return found

    plots = {
        "drain": ("Draining a backlog", "events a second", ["drain", "competitors", "ceiling"],
                  "perSecond", 1),
        "order": ("Order, clutter and hosts", "events a second", ["order", "clutter", "hosts"],
                  "perSecond", 1),
        "guests": ("Languages", "events a second", ["guests"], "perSecond", 1),
        "recording": ("Recording", "events a second", ["recording"], "perSecond", 1),
        "memory": ("Memory", "MiB resident", ["memory"], "rssBytes", MIB),
    }
    out = {name: svg.bars(title, unit, rows(measures, path, divisor))
           for name, (title, unit, measures, path, divisor) in plots.items()
           if rows(measures, path)}
    if "latency" in documents:
        both = [(label, [ratios.pick(subject["median"], "start.p50"),
                         ratios.pick(subject["median"], "start.p99")])
                for label, subject in documents["latency"]["subjects"].items()
                if ratios.pick(subject["median"], "start.p50") is not None]
        out["latency"] = svg.bars("From commit to the handler's start", "milliseconds", both,
                                  ["p50", "p99"])
    if "soak" in documents:
        out["soak"] = soak(documents["soak"])
    return out


def soak(document):
    rounds = next(iter(document["subjects"].values()))["rounds"]
    figures = next((one for one in rounds if "samples" in one), None)
    if figures is None:
        return None
    over = lambda name, unit: [(sample["at"] / 60, sample[name] / unit)
                               for sample in figures["samples"]]
    return svg.lines("Half of the peak rate", "share of the largest value", [
        ("memory, MiB", over("rssBytes", MIB)), ("table and indexes, MiB", over("tableBytes", MIB)),
        ("live rows", over("liveRows", 1)),
        ("p99, ms", [(minute["minute"], minute["p99"]) for minute in figures["minutes"]])])
