"""Resources of every scenario: scale, tools, webhooks, disk figures, and a directory for results."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from . import pace, plot, vegeta
from .servers import RELEASE, ROOT

SECRET = "a-secret-for-the-benchmark-only"
WRONG_SECRET = "another-secret-so-every-signature-is-forged"
DISTINCT = 10_000
# Largest file of prepared webhooks; wrk reads all of it into memory.
REQUESTS_BYTES_MAX = 256 << 20
# A disk that changes by more than this during a scenario gets a remark.
DISK_DRIFT_MAX = 1.5


class Campaign:
    """One run of the command."""

    def __init__(self, directory, quick, sustained_seconds=60, flood_seconds=120):
        self.directory, self.quick = Path(directory), quick
        self.sustained_seconds = self.scale(sustained_seconds, 3)
        self.flood_seconds = self.scale(flood_seconds, 3)
        # 0: a search finds it.
        self.sustained_rate = 0
        self.secret = SECRET
        self.wrk_threads = 2
        self.started = time.monotonic()
        self.scenario = ""
        self.disks = []
        self.vegeta_path = None

    def scale(self, whole, quick):
        return quick if self.quick else whole

    def say(self, words):
        elapsed = time.monotonic() - self.started
        print(f"[{elapsed:6.0f} s] {self.scenario}: {words}", flush=True)

    def load(self, seconds):
        """Settings for `load.measure`."""
        return {"wrk_threads": self.wrk_threads, "seconds": seconds}

    def requests(self, size=5300, secret=SECRET, shops=100):
        """Returns prepared webhooks for wrk and pace, which give each that they send new ids. They are made
        once for each size, secret and number of shops."""
        path = self.directory / f"requests-{size}-{shops}-{'good' if secret == SECRET else 'forged'}.bin"
        if not path.exists():
            count = min(self.scale(DISTINCT, 2000), REQUESTS_BYTES_MAX // size)
            line = [str(RELEASE / "generate"), "--format", "wrk", "--out", str(path)]
            line += ["--count", str(count), "--size", str(size), "--shops", str(shops)]
            line += ["--targets", str(ROOT / "loadtest")]
            environment = {"PATH": os.environ["PATH"], "SHOPIFY_CLIENT_SECRET": secret}
            subprocess.run(line, env=environment, check=True)
        return path

    @contextmanager
    def prepared(self, port, rate, seconds, connections=256, label=""):
        """Returns an open loop of vegeta that is ready to run; see `vegeta.Attack`. Its webhooks repeat."""
        self.vegeta_path = self.vegeta_path or vegeta.find()
        count = int(rate * seconds) + connections
        path = vegeta.targets(port, SECRET, self.directory, count, label=label)
        try:
            yield vegeta.Attack(self.vegeta_path, path, rate, seconds, connections)
        finally:
            path.unlink()

    def pace(self, port, rate, seconds, shops=100):
        """Runs an open loop with a generator that uses little CPU; see `pace.run`."""
        out = self.directory / f"pace-{port}.csv"
        return pace.run(port, self.requests(shops=shops), rate, seconds, out)

    def offer(self, port, rate, seconds):
        """Same as `pace`, without a row for each webhook. Returns the report of `pace`."""
        return pace.offer(port, self.requests(), rate, seconds)

    def stream(self, port, rate, seconds):
        """Same as `pace`, for a long time; see `pace.stream`."""
        return pace.stream(port, self.requests(), rate, seconds, self.directory / f"pace-{port}.csv")

    def fdatasync_ms(self, size):
        """Returns the median time of one append and fdatasync of `size` bytes (4, 64 or 1024 KiB).
        With several measurements in a scenario, returns their mean."""
        return mean(row["p50_us"] for disk in self.disks for row in disk if row["bytes"] == size) / 1e3

    def measure_disk(self):
        """Measures the disk. A disk changes within minutes, so scenarios measure it before and after."""
        line = [str(RELEASE / "fdatasync"), "--json", str(self.directory)]
        self.disks.append(json.loads(subprocess.run(line, check=True, capture_output=True).stdout))

    def disk_remark(self):
        """Returns a remark about the disk, if it changed much during the scenario."""
        medians = [row["p50_us"] / 1e3 for disk in self.disks for row in disk if row["bytes"] == 65536]
        if max(medians) <= DISK_DRIFT_MAX * min(medians):
            return None
        times = ", ".join(f"{median:.2f}" for median in medians)
        return f"the disk changed meanwhile: one fdatasync of 64 KiB took {times} ms, one after the other"


class Findings:
    """Results of a scenario: raw rows, figures, plots, verdicts, remarks."""

    def __init__(self):
        self.figures, self.rows, self.plots, self.verdicts, self.remarks = {}, {}, {}, [], []
        # Results in sentences.
        self.reading = []
        # Pages of the scenario itself, by name.
        self.pages = {}

    def read(self, sentence):
        self.reading.append(sentence)

    def plot(self, name, *arguments, **options):
        self.plots[name] = plot.lines(*arguments, **options)

    def bars(self, name, *arguments, **options):
        self.plots[name] = plot.bars(*arguments, **options)

    def at_most(self, what, measured, limit, unit=""):
        self.judge(what, measured, "≤", limit, unit)

    def at_least(self, what, measured, limit, unit=""):
        self.judge(what, measured, "≥", limit, unit)

    def judge(self, what, measured, sign, limit, unit):
        passed = measured is not None and (measured <= limit if sign == "≤" else measured >= limit)
        verdict = {"what": what, "measured": measured, "sign": sign, "limit": limit, "unit": unit,
                   "passed": passed}
        self.verdicts.append(verdict)


def fail(words, status=1):
    print(f"characterize: {words}", file=sys.stderr)
    sys.exit(status)
