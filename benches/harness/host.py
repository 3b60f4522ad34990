"""A host: the real `outrigger serve`, with nothing set but what a measure asks for."""

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.parse

from . import procs

KEY = "or_bench_0123456789abcdef0123456789abcdef"


class HostError(Exception):
    """What a host refused, or why it didn't start."""


class Host:
    """One running host."""

    def __init__(self, binary, url, settings=None, log=None):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("OUTRIGGER_")}
        environment |= {"OUTRIGGER_DATABASE_URL": url, "OUTRIGGER_LISTEN": "127.0.0.1:0",
                        "OUTRIGGER_ADMIN_KEY": KEY} | (settings or {})
        self.log = open(log or os.devnull, "ab")
        self.process = subprocess.Popen(
            [binary, "serve"], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self.log, text=True, cwd="/tmp")
        self.pid = self.process.pid
        self.address = None
        self.heard = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        if not self.heard.wait(60) or self.address is None:
            self.process.kill()
            raise HostError(f"the host did not start; see {log}")
        self._until_ready()

    def _listen(self):
        for line in self.process.stdout:
            self.log.write(line.encode())
            self.log.flush()
            _, found, rest = line.partition("listens on ")
            if found and self.address is None:
                self.address = urllib.parse.urlsplit(rest.split()[0].rstrip(",")).netloc
                self.heard.set()
        self.heard.set()

    def _until_ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise HostError("the host did not become ready")

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=120)

    def request(self, method, path, body=None, connection=None):
        """Sends a request, `body` as it is if it is bytes, and answers status and text."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        own = connection or self.connect()
        kind = "application/wasm" if path.find("/plugins/") > 0 else "application/json"
        own.request(method, path, body,
                    {"Authorization": f"Bearer {KEY}", "Content-Type": kind})
        response = own.getresponse()
        text = response.read()
        if connection is None:
            own.close()
        return response.status, text

    def ok(self, method, path, body=None):
        status, text = self.request(method, path, body)
        if not 200 <= status < 300:
            raise HostError(f"{method} {path}: {status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def project(self, name):
        self.ok("PUT", f"/v1/projects/{name}", {})

    def plugin(self, project, name, component):
        self.ok("PUT", f"/v1/projects/{project}/plugins/{name}?activate=true", component)

    def trigger(self, project, name, plugin, **more):
        document = {"match": {}, "target": {"plugin": plugin}} | more
        self.ok("PUT", f"/v1/projects/{project}/triggers/{name}", document)

    def cpu_seconds(self):
        return procs.cpu_seconds(self.pid)

    def rss_bytes(self):
        return procs.rss_bytes(self.pid)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
