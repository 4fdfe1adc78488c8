"""Load by wrk, a closed loop: each connection sends its next webhook when the last is answered."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager

from .servers import ROOT, Failed


def command(port, connections, seconds, threads, requests, scheme="http"):
    # wrk divides the connections among its threads and needs at least one for each.
    threads = min(threads, connections)
    line = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s"]
    line += ["-s", str(ROOT / "bench" / "wrk.lua"), f"{scheme}://127.0.0.1:{port}"]
    return [*line, "--", str(requests), str(threads)]


def run(port, connections, seconds, threads, requests, scheme="http"):
    """Sends for a number of seconds. Returns requests, non-2xx, errors and latency percentiles. Over https, the
    certificate is not checked."""
    line = command(port, connections, seconds, threads, requests, scheme)
    out = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 60)
    for line in out.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise Failed(f"wrk gave no result:\n{out.stdout}{out.stderr}")


@contextmanager
def running(port, connections, seconds_max, threads, requests):
    """Sends in the background for at most a number of seconds. Stopped by its process id."""
    line = command(port, connections, seconds_max, threads, requests)
    with open(os.devnull, "w") as nowhere:
        child = subprocess.Popen(line, stdout=nowhere, stderr=nowhere)
    try:
        yield child
    finally:
        child.terminate()
        # It may be stopped.
        child.send_signal(signal.SIGCONT)
        child.wait()
