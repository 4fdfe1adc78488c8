"""Load by `pace`, an open loop for latencies at a fixed rate. It uses far less CPU than vegeta, and its
latencies count from the time a webhook was due, not from the time it was sent."""

import csv
import json
import subprocess

from .servers import RELEASE

# Time limit of pace for the last answers, and time for it to write its file.
PATIENCE_SECONDS = 60
NO_ANSWER = "no answer: connection lost, or too late"


def run(port, requests, rate, seconds, out):
    """Sends `requests`, a file written by `generate --format wrk`, in turn. Returns the report of
    `pace`, and hits as in `vegeta.Attack`, but with the time each was due, in seconds since the start."""
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
