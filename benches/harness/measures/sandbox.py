"""What a call costs: bare, through the executor, and in which language."""

import json
import os
import subprocess

from ..host import HostError
from ..subjects import OutriggerPostgres
from .drain import drain, each


class Sandbox:
    """A bare wasmtime loop against the same calls through the executor."""

    name = "sandbox"

    def subjects(self, bench):
        yield "executor", lambda: self.probe(bench)

    @staticmethod
    def probe(bench):
        if bench.probe is None:
            return {"notAvailable": "there is no probe"}
        calls = str(bench.share(20_000, 2_000))
        answer = subprocess.run(
            [bench.probe, "sandbox", "--plugin", os.path.join(bench.plugins, "noop.wasm"),
             "--calls", calls], check=True, stdout=subprocess.PIPE, text=True, timeout=900)
        return json.loads(answer.stdout.strip().splitlines()[-1])


class Guests:
    """The same handler in three languages, with an instance for each event and
    with one for each batch."""

    name = "guests"

    def subjects(self, bench):
        events = bench.share(20_000, 2_000)
        for language, plugin in (("Rust", "parse"), ("JavaScript", "parse_js"),
                                 ("Python", "parse_py")):
            for isolation in ("event", "batch"):
                yield f"{language}, {isolation}", lambda p=plugin, i=isolation: self.one(
                    bench, p, i, events)

    @staticmethod
    def one(bench, plugin, isolation, events):
        if not bench.has_plugin(plugin):
            return {"notAvailable": f"{plugin}.wasm isn't built"}
        subject = OutriggerPostgres(bench, plugin=plugin, trigger={"isolation": isolation})
        try:
            figures = drain(subject, events)
        except HostError as error:
            if isolation == "batch" and " 422 " in str(error):
                return {"notAvailable": "the host refuses isolation = \"batch\""}
            raise
        return figures | {"each": each(figures)}
