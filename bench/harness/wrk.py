"""Load by wrk, a closed loop: each connection sends its next webhook when the last is answered."""

import json
import subprocess

from .servers import ROOT, Failed


def run(port, connections, seconds, threads, requests):
    """Sends for so many seconds. Returns requests, non-2xx, errors and latency percentiles."""
    command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s"]
    command += ["-s", str(ROOT / "bench" / "wrk.lua"), f"http://127.0.0.1:{port}"]
    command += ["--", str(requests), str(threads)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    for line in out.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise Failed(f"wrk gave no result:\n{out.stdout}{out.stderr}")
