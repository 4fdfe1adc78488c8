"""Samples a running cell at regular intervals."""

import socket
import threading
import time

from . import machine


class Asker:
    """One connection to Redis for INFO and the counters; inline commands, no library."""

    def __init__(self, unix_socket):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(unix_socket)
        self.replies = self.socket.makefile("rb")

    def ask(self, command):
        self.socket.sendall(command.encode() + b"\r\n")
        head = self.replies.readline()
        if not head.startswith(b"$"):
            raise ConnectionError(f"redis answered {head!r}")
        length = int(head[1:])
        return "" if length < 0 else self.replies.read(length + 2)[:-2].decode()

    def appended(self):
        return int(self.ask("HGET {spillway}:counts appended") or 0)

    def waiting(self, consumer="http"):
        """Returns the webhooks that a consumer has not settled. Replays are not counted: no scenario has any."""
        count = lambda field: int(self.ask(f"HGET {{spillway}}:counts {field}:{consumer}") or 0)
        # What is settled first: a webhook that is settled meanwhile counts as waiting.
        settled = count("through") + count("open") - count("lanes")
        return self.appended() - settled

    def seen(self, consumer=None):
        pairs = (line.split(":", 1) for line in self.ask("INFO").splitlines() if ":" in line)
        info = dict(pairs)
        keys = {"used_memory": "memory_bytes", "aof_current_size": "aof_bytes",
                "aof_rewrites": "aof_rewrites"}
        figures = {name: int(info.get(key, 0)) for key, name in keys.items()}
        waiting = {"waiting": self.waiting(consumer)} if consumer else {}
        return {"appended": self.appended(), **waiting, **figures}

    def close(self):
        self.replies.close()
        self.socket.close()


class Sampler(threading.Thread):
    """Samples until its `with` block ends. `samples` is a list of rows with `seconds` from the start. With
    `consumer`, rows have the webhooks that wait for it."""

    def __init__(self, unix_socket, pids, every=1.0, consumer=None):
        super().__init__(daemon=True)
        self.unix_socket, self.pids, self.every, self.consumer = unix_socket, pids, every, consumer
        self.samples, self.ended = [], threading.Event()

    def run(self):
        asker, start = Asker(self.unix_socket), time.monotonic()
        try:
            while True:
                row = {"seconds": time.monotonic() - start, **asker.seen(self.consumer)}
                for name, pid in self.pids.items():
                    row[f"{name}_rss_bytes"] = machine.resident_bytes(pid)
                self.samples.append(row)
                if self.ended.wait(self.every):
                    return
        finally:
            asker.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(timeout=60)


# What Redis keeps of a delivery for DEDUP_WINDOW: a fingerprint of 16 bytes, and 26 of the history (docs/redis-schema.md).
KEPT_BYTES = 42
# Fingerprints that DEDUP_MEMORY holds as it comes: more than that are forgotten.
KEPT_MAX = 3_441_480


def kept_bytes(deliveries):
    """Returns the bytes that Redis keeps of deliveries, without the heads of its entries."""
    return KEPT_BYTES * min(deliveries, KEPT_MAX)


def rate_between(samples, start, end):
    """Returns the webhooks stored per second between two times of the samples."""
    chosen = [row for row in samples if start <= row["seconds"] <= end]
    if len(chosen) < 2:
        return None
    first, last = chosen[0], chosen[-1]
    return (last["appended"] - first["appended"]) / (last["seconds"] - first["seconds"])


def when(samples, appended):
    """Returns the time at which a number of webhooks was stored, interpolated between two samples."""
    for before, after in zip(samples, samples[1:]):
        if before["appended"] <= appended < after["appended"]:
            part = (appended - before["appended"]) / (after["appended"] - before["appended"])
            return before["seconds"] + part * (after["seconds"] - before["seconds"])
    return samples[-1]["seconds"]


def plot(found, samples):
    """Plots the rate at which webhooks were stored, and the memory and AOF of Redis."""
    rates = [(after["seconds"], (after["appended"] - before["appended"])
              / (after["seconds"] - before["seconds"])) for before, after in zip(samples, samples[1:])]
    found.plot("rate", "Webhooks stored per second", "seconds", "per second", {"rate": rates})
    found.plot("memory", "Redis memory and AOF", "seconds", "MiB", {
        "memory": [(row["seconds"], row["memory_bytes"] / 2**20) for row in samples],
        "AOF": [(row["seconds"], row["aof_bytes"] / 2**20) for row in samples]})
