"""Fills a queue with `fill`: webhooks of chosen shops, products and topics, without duplicates, each
sent until it is stored."""

import json
import os
import subprocess
from contextlib import contextmanager

from .servers import RELEASE, ROOT, Failed


def command(port, count, options):
    line = [str(RELEASE / "fill"), "--address", f"127.0.0.1:{port}", "--count", str(count)]
    line += ["--targets", str(ROOT / "loadtest")]
    for name, value in options.items():
        line += [f"--{name.replace('_', '-')}", str(value)]
    return line


def run(port, count, secret, seconds_max, **options):
    """Stores a number of webhooks and returns the report of `fill`."""
    with running(port, count, secret, **options) as child:
        return report(child, seconds_max)


@contextmanager
def running(port, count, secret, **options):
    """Runs `fill` in the background and stops it by its process id."""
    environment = {"PATH": os.environ["PATH"], "SHOPIFY_CLIENT_SECRET": secret}
    child = subprocess.Popen(command(port, count, options), env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def report(child, seconds_max):
    """Waits for its end and returns its report."""
    try:
        out, errors = child.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        raise Failed(f"the queue was not filled within {seconds_max:.0f} s") from None
    if child.returncode:
        raise Failed(f"fill ended with status {child.returncode}: {errors[-1000:]}")
    return json.loads(out)
