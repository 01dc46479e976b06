"""What the description of the control socket cannot say.

* `GET /events` answers until the run ends. A query that is as described gets a `limit` that the run has reached already.
* Random text is no probe. Every second body of `POST /probes` that is as described gets probes that this guest has, so that there are
  probes to change and to remove. `HYPROBE_SPECS` names them.
* A body of JSON lines is as described if each line is.
"""

import json
import os
import zlib

import jsonschema_rs
import schemathesis

EVENTS = 5
SPECS = os.environ["HYPROBE_SPECS"].split()
PROGRAMS = {"filter": "arg0 != 7 && cpu == 0", "aggregate": "hist(arg0)"}


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = f"{case.method.upper()} {case.operation.path}"
    if operation in ("GET /events", "HEAD /events"):
        case.query = ending(dict(case.query or {}))
    if operation == "POST /probes" and case.meta and case.meta.generation.mode.is_positive:
        choice = zlib.crc32(json.dumps(case.body, sort_keys=True, default=str).encode())
        if choice % 2 == 0:
            probes = case.body if isinstance(case.body, list) else [case.body]
            probes = [plantable(dict(probe), choice + number) for number, probe in enumerate(probes)]
            case.body = probes if isinstance(case.body, list) else probes[0]


def ending(query):
    for name, value in (("limit", EVENTS), ("from", 1)):
        if name not in query or is_number(query[name]):
            query[name] = value
    return query


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def plantable(probe, choice):
    probe["spec"] = SPECS[choice % len(SPECS)]
    for name, text in PROGRAMS.items():
        if probe.get(name) is not None:
            probe[name] = text
    if probe.get("aggregate") is not None:
        probe.pop("action", None)
    return probe


@schemathesis.deserializer("application/x-ndjson")
def json_lines(context, response):
    lines = [json.loads(line) for line in response.content.splitlines()]
    description = context.operation.schema.raw_schema
    schema = {"$ref": "#/components/schemas/EventLine", "components": description["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    for line in lines:
        validator.validate(line)
    # The schema of the answer is that of a line.
    return lines[-1]
