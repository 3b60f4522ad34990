"""What was found: raw figures, and their medians."""

import json
import os
import statistics
import time

from . import machine


class Results:
    """The figures of one run, one file for each measure."""

    def __init__(self, options, bench):
        self.folder = options.results
        os.makedirs(self.folder, exist_ok=True)
        self.run = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": options.quick,
            "machine": machine.describe(),
            "versions": {
                "outrigger": machine.output(bench.binary, "--version"),
                "postgresql": bench.cluster.version(),
                "node": machine.output(bench.node, "--version"),
            },
            "postgresql": bench.cluster.settings(),
        }
        self.measures = {}

    def add(self, measure, subject, number, figures):
        """Keeps the figures of one subject in one round, on the disk at once."""
        rounds = self.measures.setdefault(measure, {}).setdefault(subject, [])
        rounds.append({"round": number} | figures)
        document = self.run | {"measure": measure, "subjects": {
            name: {"median": median(values), "rounds": values}
            for name, values in self.measures[measure].items()}}
        path = os.path.join(self.folder, f"{measure}.json")
        with open(f"{path}.partial", "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        os.replace(f"{path}.partial", path)

    def summary(self):
        for measure, subjects in self.measures.items():
            print(f"\n{measure}, medians of {max(map(len, subjects.values()))}:")
            for name, values in subjects.items():
                print(f"  {name}: {line(median(values))}")


def median(rounds):
    """The median of each number, of rounds that brought one."""
    good = [figures for figures in rounds if "failed" not in figures]
    if not good:
        return rounds[-1]
    out = {}
    for name, first in good[-1].items():
        values = [figures[name] for figures in good if name in figures]
        if isinstance(first, dict):
            out[name] = median(values)
        elif isinstance(first, (int, float)) and name != "round":
            out[name] = statistics.median(values)
        elif not isinstance(first, list) and name != "round":
            out[name] = first
    return out


def line(figures, prefix=""):
    """Figures on one line."""
    parts = []
    for name, value in figures.items():
        if isinstance(value, dict):
            parts.append(line(value, f"{prefix}{name}."))
        elif isinstance(value, float):
            parts.append(f"{prefix}{name} {value:.6g}")
        elif not isinstance(value, list):
            parts.append(f"{prefix}{name} {value}")
    return "  ".join(parts)
