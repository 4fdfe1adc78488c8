"""Load by vegeta, an open loop: so many webhooks a second, answered or not."""

import csv
import os
import shutil
import subprocess
from pathlib import Path

from .servers import RELEASE, ROOT, Failed

# Made before the attack and sent in turn, so that making them takes no CPU from what is measured.
TARGETS_MAX = 20_000


def find():
    """vegeta on the PATH, or the pinned one, which Go builds the first time."""
    if path := shutil.which("vegeta"):
        return path
    if not shutil.which("go"):
        raise Failed("vegeta is missing, and so is Go to build the pinned one (bench/vegeta)")
    tool = ["go", "-C", str(ROOT / "bench" / "vegeta"), "tool", "-n", "vegeta"]
    return subprocess.run(tool, check=True, capture_output=True, text=True).stdout.strip()


def targets(port, secret, directory, count, size=5300, label=""):
    """A file of up to `TARGETS_MAX` signed webhooks for that port."""
    path = Path(directory) / f"targets{label}-{port}-{size}.json"
    command = [str(RELEASE / "generate"), "--format", "vegeta-json", "--out", str(path)]
    command += ["--count", str(min(count, TARGETS_MAX)), "--size", str(size)]
    command += ["--targets", str(ROOT / "loadtest")]
    command += ["--url", f"http://127.0.0.1:{port}/webhooks/products"]
    environment = {"PATH": os.environ["PATH"], "SHOPIFY_CLIENT_SECRET": secret}
    subprocess.run(command, env=environment, check=True)
    return path


def attack(program, path, rate, seconds, connections):
    """Offers `rate` webhooks a second. Returns each as (sent at, status, latency, error), times in
    seconds; a status of 0 is no answer, and only then the error counts."""
    out = path.with_suffix(".bin")
    command = [program, "attack", "-format=json", f"-targets={path}", f"-output={out}"]
    command += [f"-rate={rate}/1s", f"-duration={seconds}s", "-timeout=5s", "-redirects=-1"]
    command += ["-http2=false", "-max-body=0", f"-workers={min(connections, 256)}"]
    command += [f"-max-workers={connections}", f"-connections={connections}"]
    subprocess.run(command, check=True, timeout=seconds + 60)
    encode = [program, "encode", "-to=csv", str(out)]
    with subprocess.Popen(encode, stdout=subprocess.PIPE, text=True) as encoder:
        hits = [(int(row[0]) / 1e9, int(row[1]), int(row[2]) / 1e9, row[5])
                for row in csv.reader(encoder.stdout)]
    out.unlink()
    if not hits:
        raise Failed("vegeta sent nothing")
    return sorted(hits)


def percentile(values, percent):
    """The smallest value that so many percent do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


def summary(hits, seconds):
    """Rates, and latencies in ms of the accepted (200) and the refused (503)."""
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


def kind(error):
    """An error's last words: what went wrong, without addresses."""
    return error.rpartition(": ")[2][:60]


def answered_per_second(hits, status, start, end):
    """Answers of that status that came between two times, whenever they were asked for."""
    count = sum(1 for at, got, latency, _ in hits if got == status and start <= at + latency < end)
    return count / (end - start)
