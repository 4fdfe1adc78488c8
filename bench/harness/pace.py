"""Load by `pace`, an open loop for latencies at a fixed rate. No two of its webhooks are duplicates. It uses
far less CPU than vegeta, and its latencies count from the time a webhook was due, not from the time it was
sent."""

import csv
import json
import subprocess

from .servers import RELEASE

# Time limit of pace for the last answers, and time for it to write its file.
PATIENCE_SECONDS = 60
NO_ANSWER = "no answer: connection lost, or too late"


def offer(port, requests, rate, seconds, out=None):
    """Sends the bodies of `requests`, a file written by `generate --format wrk`, in turn, each with new ids.
    Returns the report of `pace`. `out` is a file for a row of each webhook."""
    line = [str(RELEASE / "pace"), "--address", f"127.0.0.1:{port}", "--requests", str(requests)]
    line += ["--rate", str(int(rate)), "--seconds", str(seconds), *(["--out", str(out)] if out else [])]
    timeout = seconds + PATIENCE_SECONDS
    ran = subprocess.run(line, check=True, stdout=subprocess.PIPE, timeout=timeout)
    return json.loads(ran.stdout)


def run(port, requests, rate, seconds, out):
    """Offers a load. Returns the report of `pace`, and hits as in `vegeta.Attack`, but with the time each
    was due, in seconds since the start."""
    report = offer(port, requests, rate, seconds, out)
    with open(out, newline="") as rows:
        hits = [hit(row) for row in csv.reader(rows)]
    out.unlink()
    return report, hits


def stream(port, requests, rate, seconds, out, piece_seconds=60):
    """Offers a load that is too long to be kept in memory, in pieces, and yields the hits of each piece once it
    has ended. The time between two pieces, in which their hits are read, does not count."""
    for begin in range(0, seconds, piece_seconds):
        offer(port, requests, rate, min(piece_seconds, seconds - begin), out)
        with open(out, newline="") as rows:
            for row in csv.reader(rows):
                due, status, latency, error = hit(row)
                yield begin + due, status, latency, error
        out.unlink()


def hit(row):
    status = int(row[2])
    return int(row[0]) / 1e6, status, int(row[1]) / 1e6, "" if status else NO_ANSWER
