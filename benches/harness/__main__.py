"""Runs measures in interleaved rounds and keeps what they find."""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback

from . import report, results
from .cluster import Cluster
from .measures.drain import Ceiling, Competitors, Drain
from .measures.idle import Idle, Memory
from .measures.latency import Latency
from .measures.order import Clutter, Hosts, Order
from .measures.recording import Recording
from .measures.sandbox import Guests, Sandbox
from .measures.soak import Soak

MEASURES = [Drain(), Ceiling(), Competitors(), Latency(), Order(), Clutter(), Hosts(),
            Sandbox(), Guests(), Recording(), Memory(), Idle(), Soak()]


class Bench:
    """What measures share: paths, sizes, the cluster."""

    def __init__(self, options):
        self.options = options
        self.binary, self.node = options.binary, options.node
        self.probe = options.probe
        self.plugins, self.guests = options.plugins, options.guests
        self.quick = options.quick
        self.events = options.events or (20_000 if options.quick else 400_000)
        self.sizes = [self.events] if options.events else (
            [5_000, 20_000, 50_000] if options.quick else [50_000, 400_000, 1_000_000])
        self.soak = options.soak
        self.postgres_bin = options.postgres_bin
        self.folder = tempfile.mkdtemp(prefix="outrigger-bench-")
        self.log_file = os.path.join(self.folder, "hosts.log")
        self.cluster = Cluster(options.postgres, options.postgres_folder)

    def share(self, whole, quick):
        """The first number, or the second in a quick run."""
        return quick if self.quick else whole

    def has_plugin(self, name):
        return self._component(name) is not None

    def plugin(self, name):
        """The bytes of a component."""
        path = self._component(name)
        if path is None:
            raise FileNotFoundError(f"no component is called {name}.wasm")
        with open(path, "rb") as file:
            return file.read()

    def _component(self, name):
        for folder in (self.plugins, self.guests):
            path = os.path.join(folder, f"{name}.wasm")
            if os.path.exists(path):
                return path
        return None

    def scratch(self, name):
        """A path that nothing is at."""
        path = os.path.join(self.folder, name)
        for ending in ("", "-wal", "-shm", ".host-lock"):
            if os.path.exists(path + ending):
                os.remove(path + ending)
        return path

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def parse():
    names = [measure.name for measure in MEASURES]
    parser = argparse.ArgumentParser(prog="benches/run", description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE",
                        help=f"which to run, all if none is named: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; 1 with --quick)")
    parser.add_argument("--events", type=int, help="events of a drain")
    parser.add_argument("--quick", action="store_true", help="one round of small numbers")
    parser.add_argument("--only", metavar="TEXT", help="only subjects whose name has this in it")
    parser.add_argument("--soak", metavar="TIME", type=span,
                        help="run the soak, so long: 10m, 90s")
    parser.add_argument("--report", action="store_true",
                        help="only write the tables and plots from the results that are there")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", metavar="DIR",
                        help="where figures, tables and plots go (benches/results, docs/performance)")
    for hidden in ("--binary", "--probe", "--plugins", "--guests", "--node", "--postgres",
                   "--postgres-folder", "--postgres-bin"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.measures if name not in names]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)}; there are {', '.join(names)}")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    options.plots = options.results or os.path.join(root, "docs", "performance")
    options.results = options.results or os.path.join(root, "benches", "results")
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def span(text):
    """Seconds of `10m` or `90s`."""
    units = {"s": 1, "m": 60, "h": 3600}
    if len(text) < 2 or text[-1] not in units or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is no time such as 10m or 90s")
    return int(text[:-1]) * units[text[-1]]


def main():
    options = parse()
    if options.check:
        return 0
    if options.report:
        return report.write(options.results, options.plots)
    bench = Bench(options)
    kept = results.Results(options, bench)
    chosen = [measure for measure in MEASURES
              if not options.measures or measure.name in options.measures]
    failures = 0
    try:
        for number in range(1, options.rounds + 1):
            for measure in chosen:
                for name, run in measure.subjects(bench):
                    if options.only and options.only not in name:
                        continue
                    failures += one(kept, measure, name, run, number)
    finally:
        bench.close()
    kept.summary()
    report.write(options.results, options.plots)
    return 1 if failures else 0


def one(kept, measure, name, run, number):
    """Runs one subject of a measure; answers 1 if it failed."""
    began = time.monotonic()
    try:
        figures = run()
    except KeyboardInterrupt:
        raise
    except Exception as error:  # noqa: BLE001: the other measures go on
        traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    kept.add(measure.name, name, number, figures)
    took = time.monotonic() - began
    print(f"round {number}  {measure.name}: {name}: {results.line(figures)}  [{took:.0f} s]",
          flush=True)
    return 1 if "failed" in figures else 0


if __name__ == "__main__":
    sys.exit(main())
