"""Starts and stops the measured processes: a private Redis, the receiver, the baseline and others. Each
has a directory that is deleted with it, so that every round starts equal."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import machine

ROOT = Path(__file__).resolve().parents[2]
# Build directory of cargo, as in the Makefile.
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "release"
READY_WITHIN = 20.0
# Connections that may wait to be accepted: more than any load opens at once.
BACKLOG = 4096
# Redis options for each durability level; the others are in ops/redis.conf.
FSYNC = {
    "always": ["--appendonly", "yes", "--appendfsync", "always"],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "none": ["--appendonly", "no"],
}


# Downstreamers that run, which drop repeated webhooks.
downstreamers = []


class Failed(Exception):
    """Error that ends a run, with the reason as its text."""


@contextmanager
def alone():
    """Holds the benchmark lock of this checkout, because two runs at once would measure each other."""
    # What was started is ended after SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    path = ROOT / "target" / "bench.lock"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another benchmark runs here (it holds {path})") from None
        yield


@contextmanager
def process(name, command, environment, log_directory, pass_fds=()):
    """Runs a process and stops it by its process id in any case."""
    log_path = Path(log_directory) / f"{name}.log"
    with open(log_path, "ab") as log:
        child = subprocess.Popen(
            command, env={"PATH": os.environ["PATH"], **environment}, stdout=log, stderr=log,
            pass_fds=pass_fds,
        )
    try:
        yield child
        if child.poll() is not None:
            raise Failed(f"{name} ended with status {child.returncode}:\n{tail(log_path)}")
    except Failed as failure:
        raise Failed(f"{failure}\n{name}: {tail(log_path)}") from None
    finally:
        child.terminate()
        # It may be stopped.
        child.send_signal(signal.SIGCONT)
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def tail(path):
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])


def wait_for(what, child, ready):
    deadline = time.monotonic() + READY_WITHIN
    while not ready():
        if child.poll() is not None:
            raise Failed(f"{what} ended at its start, status {child.returncode}")
        if time.monotonic() > deadline:
            raise Failed(f"{what} is not ready within {READY_WITHIN:.0f} s")
        time.sleep(0.02)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Redis:
    """A running Redis, accessed over its socket with redis-cli."""

    def __init__(self, child, unix_socket):
        self.child, self.unix_socket = child, unix_socket

    def info(self):
        out = subprocess.run(
            ["redis-cli", "-s", self.unix_socket, "INFO"], capture_output=True, text=True
        )
        pairs = (line.split(":", 1) for line in out.stdout.splitlines() if ":" in line)
        return {key: value.strip() for key, value in pairs}

    def ready(self):
        return self.info().get("loading") == "0"


@contextmanager
def redis(fsync, directory, *more):
    """Runs a new Redis with ops/redis.conf. Its data is on the measured disk, its socket in a short
    path. `more` are further arguments."""
    data = tempfile.mkdtemp(prefix="redis-", dir=directory)
    sockets = tempfile.mkdtemp(prefix="spillway-bench-")
    unix_socket = f"{sockets}/redis.sock"
    command = ["redis-server", str(ROOT / "ops" / "redis.conf"), "--dir", data]
    command += ["--unixsocket", unix_socket, "--port", "0", "--daemonize", "no"]
    command += ["--supervised", "no", "--pidfile", f"{sockets}/pid", "--logfile", ""]
    try:
        with process("redis", [*command, *FSYNC[fsync], *more], {}, directory) as child:
            server = Redis(child, unix_socket)
            wait_for("redis", child, server.ready)
            yield server
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


@contextmanager
def receiver(server, secret, directory, program=RELEASE / "request-receiver", **settings):
    """Runs a new receiver and yields its process and port. `program` may be of another release."""
    port, admin = machine.free_port(), machine.free_port()
    environment = {
        "LISTEN": f"127.0.0.1:{port}",
        "ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "REDIS_URL": f"unix://{server.unix_socket}",
        "SHOPIFY_CLIENT_SECRET": secret,
        "RUST_LOG": "warn",
        # Some scenarios use a Redis that syncs each second, or not at all.
        "REQUIRE_DURABLE": "false",
        **settings,
    }
    with process("receiver", [str(program)], environment, directory) as child:
        wait_for("receiver", child, lambda: answers(f"http://127.0.0.1:{admin}/readyz"))
        child.admin = admin
        yield child, port


# Passes a listening socket on as systemd does: as file 3, with the process id.
HAND_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def receivers(count, server, secret, directory):
    """Runs new receivers that share one listening socket and one Redis. Yields [(process, admin
    port)] and the port. As under systemd, the socket exists before the first and after the last."""
    with ExitStack() as stack:
        shared = stack.enter_context(socket.socket())
        shared.bind(("127.0.0.1", 0))
        shared.listen(BACKLOG)
        command = [sys.executable, "-c", HAND_ON, str(shared.fileno()), str(RELEASE / "request-receiver")]
        running = []
        for number in range(1, count + 1):
            admin = machine.free_port()
            environment = {
                "ADMIN_LISTEN": f"127.0.0.1:{admin}",
                "REDIS_URL": f"unix://{server.unix_socket}",
                "SHOPIFY_CLIENT_SECRET": secret,
                "RUST_LOG": "warn",
            }
            name = f"receiver-{number}"
            child = stack.enter_context(
                process(name, command, environment, directory, (shared.fileno(),)))
            wait_for(name, child, lambda: answers(f"http://127.0.0.1:{admin}/readyz"))
            running.append((child, admin))
        yield running, shared.getsockname()[1]


def counter(admin, name, label="", must_exist=False):
    """Returns the sum of a counter over its labels, or of those that hold `label`, from the metrics of a process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    found = [float(line.rpartition(" ")[2]) for line in lines
             if line.partition("{")[0].partition(" ")[0] == name and label in line]
    if must_exist and not found:
        raise Failed(f"the metrics have no {name}")
    return int(sum(found))


@contextmanager
def downstreamer(server, backend_port, directory, duplicates=0, program=RELEASE / "downstreamer", **settings):
    """Runs a downstreamer between a Redis and a backend and yields its process. `program` may be of another
    release. Settings are the defaults unless given. Fails at the end unless exactly `duplicates` webhooks were dropped as duplicates, and none
    for another reason: what is dropped is not delivered, and makes a rate look high."""
    admin = machine.free_port()
    environment = {
        "ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "REDIS_URL": f"unix://{server.unix_socket}",
        "DOWNSTREAM_APP_URL": f"http://127.0.0.1:{backend_port}",
        "RUST_LOG": "warn",
        **settings,
    }
    with process("downstreamer", [str(program)], environment, directory) as child:
        wait_for("downstreamer", child, lambda: answers(f"http://127.0.0.1:{admin}/readyz"))
        child.admin = admin
        downstreamers.append(child)
        try:
            yield child
        finally:
            downstreamers.remove(child)
        # One that has ended is reported by `process`.
        if child.poll() is None:
            check_dropped(admin, duplicates, "COALESCE_TOPICS" in settings)


def check_dropped(admin, duplicates=0, coalesces=False):
    """Fails if webhooks were settled without a delivery, other than those that a scenario intends."""
    dropped = {reason: counter(admin, f"spillway_{reason}_total", must_exist=True)
               for reason in ("duplicates", "coalesced", "suppressed", "stale")}
    wanted = {"duplicates": duplicates, "coalesced": dropped["coalesced"] if coalesces else 0,
              "suppressed": 0, "stale": 0}
    if dropped != wanted:
        raise Failed(f"settled without a delivery: {dropped}, expected {wanted}; the load must not repeat webhooks")


@contextmanager
def kafka(directory):
    """Runs a new broker and yields its process and address."""
    port = machine.free_port()
    # Its data is deleted with the directory of the whole campaign.
    data = tempfile.mkdtemp(prefix="kafka-", dir=directory)
    environment = {"HOME": os.environ.get("HOME", "/root"), "KAFKA_HEAP": "1g",
                   "KAFKA_CONTROLLER_PORT": str(machine.free_port())}
    environment |= {name: os.environ[name] for name in ("SPILLWAY_CACHE", "XDG_CACHE_HOME")
                    if name in os.environ}
    command = [str(ROOT / "ops" / "kafka.sh"), "run", data, str(port)]
    try:
        with process("kafka", command, environment, directory) as child:
            wait_for("kafka", child, lambda: listens(port))
            yield child, f"127.0.0.1:{port}"
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def kafka_producer(server, address, directory, **settings):
    """Runs a Kafka producer between a Redis and a broker and yields its process."""
    environment = {
        "ADMIN_LISTEN": f"127.0.0.1:{machine.free_port()}",
        "REDIS_URL": f"unix://{server.unix_socket}",
        "KAFKA_URL": address,
        "RUST_LOG": "warn",
        **settings,
    }
    with process("kafka_producer", [str(RELEASE / "kafka_producer")], environment, directory) as child:
        yield child


@contextmanager
def archiver(server, archive, directory, **settings):
    """Runs an archiver between a Redis and a directory and yields its process."""
    environment = {
        "ADMIN_LISTEN": f"127.0.0.1:{machine.free_port()}",
        "REDIS_URL": f"unix://{server.unix_socket}",
        "ARCHIVE_URL": f"file://{archive}",
        # The rest, too, becomes an object at once.
        "ARCHIVE_MAX_DELAY": "2s",
        "RUST_LOG": "warn",
        **settings,
    }
    with process("archiver", [str(RELEASE / "archiver")], environment, directory) as child:
        yield child


@contextmanager
def backend(directory, delay="0ms", workers=1000, *more):
    """Runs a simulated backend and yields its port. `more` are further arguments."""
    port = machine.free_port()
    command = [str(RELEASE / "backend"), "--listen", f"127.0.0.1:{port}"]
    command += ["--delay", delay, "--workers", str(workers), *more]
    with process("backend", command, {}, directory) as child:
        wait_for("backend", child, lambda: listens(port))
        yield port


def stats(backend_port):
    """Returns the figures of a simulated backend since its start or last reset."""
    with urllib.request.urlopen(f"http://127.0.0.1:{backend_port}/stats", timeout=5) as response:
        return json.load(response)


def forget(backend_port):
    """Resets the figures of a simulated backend."""
    request = urllib.request.Request(f"http://127.0.0.1:{backend_port}/stats", method="DELETE")
    urllib.request.urlopen(request, timeout=5).close()


@contextmanager
def secrets(directory, secret, delay, together=False):
    """Runs an endpoint that names this secret for every shop of `generate`, after a delay; with `together`, for
    several shops in an answer. Yields its process and the URL."""
    port = machine.free_port()
    command = [str(RELEASE / "backend"), "--listen", f"127.0.0.1:{port}", "--delay", delay]
    command += ["--workers", "10000", "--answer", json.dumps({"secrets": [secret]})]
    command += ["--each"] if together else ["--only", "/shop-"]
    with process("secrets", command, {}, directory) as child:
        wait_for("secrets", child, lambda: listens(port))
        yield child, f"http://127.0.0.1:{port}/" + ("?of={shops}" if together else "{shop}")


@contextmanager
def baseline(secret, directory):
    """Runs a new baseline and yields its process and port."""
    port = machine.free_port()
    environment = {"LISTEN": f"127.0.0.1:{port}", "SHOPIFY_CLIENT_SECRET": secret}
    with process("baseline", [str(RELEASE / "baseline")], environment, directory) as child:
        wait_for("baseline", child, lambda: listens(port))
        yield child, port
