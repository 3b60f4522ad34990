"""Reads its event's JSON and logs a line, as `parse` beside it does in Rust."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import log
from wit_world.imports.types import Failure_Reject


class Handler(exports.Handler):
    def handle(self, event, attempt):
        try:
            payload = json.loads(event.payload)
        except ValueError as error:
            raise Err(Failure_Reject(str(error)))
        log.log(log.Level.INFO, f"{event.event_name} {payload['n']}")
