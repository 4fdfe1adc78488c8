"""Load by pace, our own open loop, for latencies at a fixed rate: it takes far less of the CPU than
vegeta, and its latencies count from when a webhook was due, not from when it was sent."""

import csv
import json
import subprocess

from .servers import RELEASE

# What pace allows the last answers after the last is due, and time for it to write its file.
PATIENCE_SECONDS = 60
NO_ANSWER = "no answer: connection lost, or too late"


def run(port, requests, rate, seconds, out):
    """Offers `requests`, a file by `generate --format wrk`, in turn. Tells pace's own report, and
    hits as `vegeta.Attack` has them, but each at the time it was due, in seconds since the start."""
    line = [str(RELEASE / "pace"), "--address", f"127.0.0.1:{port}", "--requests", str(requests)]
    line += ["--rate", str(int(rate)), "--seconds", str(seconds), "--out", str(out)]
    timeout = seconds + PATIENCE_SECONDS
    ran = subprocess.run(line, check=True, stdout=subprocess.PIPE, timeout=timeout)
    with open(out, newline="") as rows:
        hits = [hit(row) for row in csv.reader(rows)]
    out.unlink()
    return json.loads(ran.stdout), hits


def hit(row):
    status = int(row[2])
    return int(row[0]) / 1e6, status, int(row[1]) / 1e6, "" if status else NO_ANSWER
