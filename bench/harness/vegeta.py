"""Load by vegeta, an open loop: a fixed number of webhooks per second, answered or not. It repeats its
webhooks, so it is for receivers without a downstreamer. Summaries of hits, its own and those of `pace`."""

import csv
import os
import shutil
import subprocess
from pathlib import Path

from . import servers
from .servers import RELEASE, ROOT, Failed

# Made before the attack and sent in turn, so that making them does not use CPU during it.
TARGETS_MAX = 20_000
# Initial workers, so that no connection has to be opened while few are needed. More are added on demand.
WORKERS = 256
# Rate at which every worker sends its next webhook as soon as the last one is answered.
CLOSED = 0


def find():
    """Returns vegeta from the PATH, or the pinned version, which Go builds the first time."""
    if path := shutil.which("vegeta"):
        return path
    if not shutil.which("go"):
        raise Failed("vegeta is missing, and so is Go to build the pinned one (bench/vegeta)")
    tool = ["go", "-C", str(ROOT / "bench" / "vegeta"), "tool", "-n", "vegeta"]
    return subprocess.run(tool, check=True, capture_output=True, text=True).stdout.strip()


def targets(port, secret, directory, count, size=5300, label=""):
    """Returns a file of up to `TARGETS_MAX` signed webhooks for a port."""
    path = Path(directory) / f"targets{label}-{port}-{size}.json"
    command = [str(RELEASE / "generate"), "--format", "vegeta-json", "--out", str(path)]
    command += ["--count", str(min(count, TARGETS_MAX)), "--size", str(size)]
    command += ["--targets", str(ROOT / "loadtest")]
    command += ["--url", f"http://127.0.0.1:{port}/webhooks/products"]
    environment = {"PATH": os.environ["PATH"], "SHOPIFY_CLIENT_SECRET": secret}
    subprocess.run(command, env=environment, check=True)
    return path


class Attack:
    """An open loop with prepared webhooks. A hit is (sent at, status, latency, error), with times in
    seconds. A status of 0 means no answer, and only then the error is valid. Sending and reading
    are two steps, because reading uses CPU that a load running beside this one needs."""

    def __init__(self, program, path, rate, seconds, connections):
        self.program, self.path, self.out = program, path, path.with_suffix(".bin")
        self.rate, self.seconds, self.connections = int(rate), seconds, connections

    def command(self, out):
        """Returns the command. A worker has one request under way and keeps one connection."""
        line = [self.program, "attack", "-format=json", f"-targets={self.path}", f"-output={out}"]
        line += [f"-rate={self.rate}/1s", f"-duration={self.seconds}s", "-timeout=5s"]
        line += ["-redirects=-1", "-http2=false", "-keepalive=true", "-max-body=0"]
        line += [f"-workers={min(self.connections, WORKERS)}", f"-max-workers={self.connections}"]
        return [*line, f"-connections={self.connections}"]

    def run(self):
        if servers.downstreamers:
            raise Failed("vegeta repeats webhooks, which a downstreamer drops as duplicates; use pace")
        subprocess.run(self.command(self.out), check=True, timeout=self.seconds + 60)

    def hits(self):
        """Returns the hits in the order of sending. Can be called once."""
        encode = [self.program, "encode", "-to=csv", str(self.out)]
        with subprocess.Popen(encode, stdout=subprocess.PIPE, text=True) as encoder:
            hits = [hit(row) for row in csv.reader(encoder.stdout)]
        self.out.unlink()
        if not hits:
            raise Failed("vegeta sent nothing")
        return sorted(hits)


def hit(row):
    return int(row[0]) / 1e9, int(row[1]), int(row[2]) / 1e9, row[5]


def percentile(values, percent):
    """Returns the smallest value that this many percent do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else None


def summary(hits, seconds):
    """Returns rates, and latencies in ms of accepted (200) and refused (503) webhooks."""
    result = {"offered_per_second": len(hits) / seconds}
    statuses = {}
    for _, status, _, error in hits:
        status = status or f"no answer, {kind(error)}"
        statuses[str(status)] = statuses.get(str(status), 0) + 1
    result["statuses"] = statuses
    for name, status in (("accepted", 200), ("refused", 503)):
        latencies = [latency for _, got, latency, _ in hits if got == status]
        result[f"{name}_per_second"] = len(latencies) / seconds
        for percent in (50, 90, 99):
            value = percentile(latencies, percent)
            result[f"{name}_p{percent}_ms"] = None if value is None else value * 1e3
    return result


def counts(hits):
    """Returns the numbers of webhooks accepted, refused with 503, answered otherwise, and not answered."""
    kinds = {200: "accepted", 503: "refused", 0: "unanswered"}
    result = dict.fromkeys(("accepted", "refused", "other", "unanswered"), 0)
    for _, status, _, _ in hits:
        result[kinds.get(status, "other")] += 1
    return result


def by_step(hits, step, start=None):
    """Groups the hits by the time of sending in steps of `step` seconds: (since start, hits)."""
    start = hits[0][0] if start is None else start
    cut = {}
    for one in hits:
        cut.setdefault(int((one[0] - start) // step), []).append(one)
    return [(number * step, cut[number]) for number in sorted(cut)]


def p_ms(hits, percent):
    """Returns a percentile of the latencies of hits, in ms."""
    value = percentile([latency for _, _, latency, _ in hits], percent)
    return None if value is None else value * 1e3


def kind(error):
    """Returns the last words of an error: the reason, without addresses."""
    return error.rpartition(": ")[2][:60]


def answered_per_second(hits, status, start, end):
    """Returns the answers per second with a status that arrived between two times."""
    count = sum(1 for at, got, latency, _ in hits if got == status and start <= at + latency < end)
    return count / (end - start)
