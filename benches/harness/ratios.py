"""What the figures must be to each other, within one run."""

import statistics


class Figures:
    """The results of all measures that there are."""

    def __init__(self, documents):
        self.documents = documents

    def subjects(self, measure):
        return self.documents.get(measure, {}).get("subjects", {})

    def named(self, measure, name):
        """The rounds of one subject; `name` is its beginning where it ends in a size."""
        found = [subject for label, subject in self.subjects(measure).items()
                 if label == name or label.rpartition(" ")[0] == name]
        found.sort(key=lambda subject: subject["median"].get("events", 0))
        return found

    def one(self, measure, name, which="main"):
        """Its rounds by their numbers; of several sizes the smallest, the
        largest, or the one that the other queues had too."""
        found = self.named(measure, name)
        if not found:
            return {}
        subject = {"small": found[0], "large": found[-1]}.get(which)
        if subject is None:
            same = [one for one in found if one["median"].get("events") == self.main()]
            subject = (same or found)[-1]
        return {figures["round"]: figures for figures in subject["rounds"]
                if "failed" not in figures and "notAvailable" not in figures}

    def main(self):
        """How many events the others drained."""
        found = self.named("competitors", "graphile-worker")
        return found[-1]["median"].get("events") if found else None


def pick(figures, path):
    for name in path.split("."):
        figures = figures.get(name) if isinstance(figures, dict) else None
    return figures


def by_round(above, below, path):
    """The ratio of a figure in each round that has both, as they stood side by side."""
    out = []
    for number, figures in above.items():
        a, b = pick(figures, path), pick(below.get(number, {}), path)
        if a is not None and b:
            out.append(a / b)
    return out


def values(rounds, path):
    found = [pick(figures, path) for figures in rounds.values()]
    return [value for value in found if value is not None]


def best_of(figures, names, path):
    """Per round, that of some subjects which has the smallest such figure and kept up."""
    best = {}
    for name in names:
        for number, found in figures.one("latency", name).items():
            value = pick(found, path)
            kept_up = "left" not in found
            if value is not None and kept_up:
                if number not in best or value < pick(best[number], path):
                    best[number] = found
    return best


def table(documents):
    """(what, median, smallest, largest, rule, bound, whether it holds) of each ratio;
    without figures where a measure is missing, and no bound where it is only told."""
    f = Figures(documents)
    drained = lambda which="main": f.one("drain", "outrigger-postgres", which)
    others = {"graphile": f.one("competitors", "graphile-worker"),
              "pgboss": f.one("competitors", "pg-boss")}
    sqlite = f.one("drain", "outrigger-sqlite")
    rate = "perSecond"
    order = lambda name: f.one("order", name)
    clutter = lambda name: f.one("clutter", name)
    found = [
        ("PostgreSQL drain : graphile-worker's", "≥", 1.3,
         by_round(drained(), others["graphile"], rate)),
        ("PostgreSQL drain : graphile-worker's, tuned further", "", None,
         by_round(drained(), f.one("competitors", "graphile-worker-tuned"), rate)),
        ("PostgreSQL drain : pg-boss's", "≥", 3.0, by_round(drained(), others["pgboss"], rate)),
        ("PostgreSQL drain : pg-boss's in one loop", "", None,
         by_round(drained(), f.one("competitors", "pg-boss-one-loop"), rate)),
        ("PostgreSQL drain : its ceiling", "≥", 0.5,
         by_round(drained(), f.one("ceiling", "ceiling-postgres"), rate)),
        ("largest drain : smallest (rate)", "≥", 0.9,
         by_round(drained("large"), drained("small"), rate)
         if len(f.named("drain", "outrigger-postgres")) > 1 else []),
        ("SQLite drain : graphile-worker's", "≥", 2.0, by_round(sqlite, others["graphile"], rate)),
        ("SQLite drain : its ceiling", "≥", 0.4,
         by_round(sqlite, f.one("ceiling", "ceiling-sqlite"), rate)),
        ("call through the executor : bare", "≤", 1.15,
         values(f.one("sandbox", "executor"), "ratio")),
        ("10,000 aggregates : unordered", "≥", 0.8,
         by_round(order("10k aggregates"), order("unordered"), rate)),
        ("one hot key : unordered", "≥", 0.25,
         by_round(order("one hot key"), order("unordered"), rate)),
        ("cluttered tables : empty", "≥", 0.9,
         by_round(clutter("cluttered tables"), clutter("empty tables"), rate)),
        ("snapshot held : none", "≥", 0.7,
         by_round(clutter("snapshot held"), clutter("empty tables"), rate)),
    ]
    for load in ("1000/s", "1000/s by tens", "burst of 24"):
        for share in ("p50", "p99"):
            path = f"start.{share}"
            graphile = best_of(f, [f"graphile-worker {load}", f"graphile-worker-default {load}"],
                               path)
            found.append((f"start at {load}, {share} : graphile-worker's", "<", 1.0,
                          by_round(f.one("latency", f"outrigger {load}"), graphile, path)))
    idle = lambda name: f.one("idle", name)
    found.append(("idle queries a second", "≤", 2.0,
                  values(idle("outrigger-postgres"), "queriesPerSecond")))
    for what, path in (("CPU", "cpuSeconds"), ("memory, 20 plugins", "rssBytes")):
        for name, label in (("outrigger-postgres", "PostgreSQL"), ("outrigger-sqlite", "SQLite")):
            found.append((f"idle {what}, {label} : graphile-worker's", "<", 1.0,
                          by_round(idle(name), idle("graphile-worker"), path)))
    return [row(*one) for one in found]


def row(what, rule, bound, ratios):
    if not ratios:
        return (what, None, None, None, rule, bound, None)
    middle = statistics.median(ratios)
    if bound is None:
        return (what, middle, min(ratios), max(ratios), rule, bound, None)
    holds = {"≥": middle >= bound, "≤": middle <= bound, "<": middle < bound}[rule]
    return (what, middle, min(ratios), max(ratios), rule, bound, holds)
