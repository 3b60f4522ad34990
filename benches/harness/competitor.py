"""The other queues' processes: Node programs that speak JSON lines."""

import json
import os
import queue
import subprocess
import threading
import time

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "competitors")


class Worker:
    """One running process of another queue."""

    def __init__(self, node, program, url, *arguments):
        self.process = subprocess.Popen(
            [node, program, "--url", url, *arguments], cwd=FOLDER, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.count = 0
        self.counted_at = 0.0
        self.answers = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        if "ready" not in self.answers.get(timeout=60):
            raise RuntimeError(f"{program} did not start")

    def _listen(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "count" in message:
                self.count, self.counted_at = message["count"], time.time()
            else:
                self.answers.put(message)
        self.answers.put({"ended": True})

    def ask(self, word):
        """Sends a word, and answers what comes back."""
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.answers.get(timeout=60)

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        if self.alive():
            try:
                self.process.stdin.write("stop\n")
                self.process.stdin.flush()
                self.process.wait(30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        self.process.stdin.close()
