"""What the kernel says of processes: CPU time and memory."""

import os
import threading

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name stands in brackets and may hold anything.
        return file.read().rpartition(")")[2].split()


def cpu_seconds(pid, children=False):
    """CPU time of a process so far, with that of its ended children if asked."""
    fields = _stat(pid)
    ticks = int(fields[11]) + int(fields[12])
    if children:
        ticks += int(fields[13]) + int(fields[14])
    return ticks / TICK


def rss_bytes(pid):
    """Memory of a process that is resident now."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE


def children_of(pid):
    """The processes that a process has started and that still run."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
        except FileNotFoundError:
            continue
    return found


def tree_cpu_seconds(pid):
    """CPU time of a process, of its children that run and of those that ended."""
    total = cpu_seconds(pid, children=True)
    for child in children_of(pid):
        try:
            total += cpu_seconds(child, children=True)
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since: its parent's figure has it at the next look.
            continue
    return total


class Peak:
    """The most memory that a process has had resident, looked at all the time."""

    def __init__(self, pid, every=0.05):
        self.pid, self.every, self.most = pid, every, 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.stopped.is_set():
            self.most = max(self.most, rss_bytes(self.pid))
            self.stopped.wait(self.every)

    def stop(self):
        self.stopped.set()
        self.thread.join()
        return self.most
