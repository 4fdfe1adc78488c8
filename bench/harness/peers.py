"""Starts the systems of `make peers`: Spillway, the bare server, and other receivers, each with a new store."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import machine, nginx, sampler, servers
from .campaign import SECRET
from .servers import ROOT, Failed

SOURCES = ROOT / "bench" / "peers"
# Directory that bench/peers/install.sh fills.
INSTALLED = servers.RELEASE.parent / "peers"
# Directory there of each system that is fetched.
FETCHED = {"nginx-lua": "debian", "adnanh-webhook": "debian",
           **{name: name for name in ("fastapi-redis", "express-bullmq", "express-postgres")}}
# Jobs that a worker of BullMQ runs at once, in each of its processes.
CONCURRENCY = 50
# Connections of the load, unless CONNECTIONS says otherwise.
CONNECTIONS = 64
# Connections to PostgreSQL of each process, at most: each is a process of PostgreSQL.
POOL_MAX = 256
# Connections that the harness itself needs at a store, and a reserve.
SPARE = 32
# Time for a question to a store.
STORE_SECONDS = 30
POSTGRES_USER = "webhooks"


@dataclass
class Running:
    """A system that runs: its port, the processes that are its server and its store, and a function that counts
    what is stored. `deliver` starts its delivery to a port and yields the processes."""

    port: int
    server: int
    stores: dict = field(default_factory=dict)
    stored: object = None
    redis: object = None
    deliver: object = None


@dataclass
class Peer:
    """A system: its name in tables, what its 200 means, a function that starts it, one that names its versions, the
    environment variable with its path if it is not installed by `make peers`, and if it runs only when SYSTEMS names
    it."""

    title: str
    durable: str
    start: object
    versions: object
    path: str = ""
    if_named: bool = False


@contextmanager
def spillway(directory, fsync):
    with servers.redis(fsync, directory) as redis, \
            servers.receiver(redis, SECRET, directory) as (child, port):
        @contextmanager
        def deliver(backend):
            with servers.downstreamer(redis, backend, directory) as drain:
                yield drain.pid

        yield Running(port, child.pid, {"redis": redis.child.pid}, lambda: appended(redis), redis, deliver)


def appended(redis):
    asker = sampler.Asker(redis.unix_socket)
    try:
        return asker.appended()
    finally:
        asker.close()


@contextmanager
def bare(directory):
    with servers.baseline(SECRET, directory) as (child, port):
        yield Running(port, child.pid)


@contextmanager
def proxy(directory):
    with servers.backend(directory) as backend, nginx.proxy(backend, directory) as (child, port):
        yield Running(port, child.pid)


@contextmanager
def on_redis(name, directory, command, count, deliver=None, tcp=False, **more):
    """Runs a peer that stores in a new Redis, which syncs each command. `command` is a function of the environment,
    `deliver` a command."""
    # The bound of ops/redis.conf is for Spillway, which needs a handful.
    clients = ["--maxclients", str(max(256, int(workers()) * connections() + SPARE))]
    at = ["--port", str(machine.free_port()), "--bind", "127.0.0.1"] if tcp else []
    with servers.redis("always", directory, *clients, *at) as redis:
        port = machine.free_port()
        data = tempfile.mkdtemp(prefix=f"{name}-", dir=directory)
        environment = {"PORT": str(port), "WEBHOOK_SECRET": SECRET, "REDIS_SOCKET": redis.unix_socket,
                       "REDIS_PORT": at[1] if tcp else "", "WORKERS": workers(), "DATA": data,
                       "CONNECTIONS": str(connections()), **more}

        @contextmanager
        def delivering(backend):
            settings = environment | {"BACKEND": f"http://127.0.0.1:{backend}/", "CONCURRENCY": str(CONCURRENCY)}
            with servers.process(f"{name}-worker", deliver, settings, directory) as child:
                yield child.pid

        with servers.process(name, command(environment), environment, directory) as child:
            servers.wait_for(name, child, lambda: servers.listens(port))
            yield Running(port, child.pid, {"redis": redis.child.pid}, lambda: ask(redis, *count), redis,
                          delivering if deliver else None)


def workers():
    """Processes of each peer that has several: one for each core."""
    return str(len(os.sched_getaffinity(0)))


def connections():
    """Connections of the load: in each process of a peer, so many requests may wait for its store at once."""
    return int(os.environ.get("CONNECTIONS") or CONNECTIONS)


def pool():
    """Connections to PostgreSQL of each process."""
    return min(connections(), POOL_MAX)


def ask(redis, *command):
    out = subprocess.run(["redis-cli", "-s", redis.unix_socket, *command], capture_output=True, text=True,
                         timeout=STORE_SECONDS)
    try:
        return int(out.stdout)
    except ValueError:
        raise Failed(f"redis answered {out.stdout or out.stderr!r} to {' '.join(command)}") from None


def filled(name, file, environment, **more):
    """Writes a file of a peer with its @NAMES@ replaced, into its data directory. Returns the path."""
    text = (SOURCES / name / file).read_text()
    for key, value in {**environment, "PEER": SOURCES / name, **more}.items():
        text = text.replace(f"@{key}@", str(value))
    path = Path(environment["DATA"]) / file
    path.write_text(text)
    return path


def nginx_lua(directory):
    debian = INSTALLED / "debian" / "usr"
    libraries = [str(path) for path in (*(debian / "lib").glob("*-linux-gnu"),
                                        *(INSTALLED / "debian" / "lib").glob("*-linux-gnu"))]

    def command(environment):
        filled("nginx-lua", "nginx.conf", environment, MODULES=debian / "lib" / "nginx" / "modules",
               LUA=debian / "share" / "lua" / "5.1", USER="user root;" if os.geteuid() == 0 else "")
        return ["nginx", "-p", environment["DATA"], "-c", "nginx.conf", "-e", "stderr"]

    return on_redis("nginx-lua", directory, command, ("XLEN", "webhooks"), LD_LIBRARY_PATH=":".join(libraries))


def adnanh(directory):
    def command(environment):
        hooks = filled("adnanh-webhook", "hooks.json", environment)
        return [str(INSTALLED / "debian" / "usr" / "bin" / "webhook"), "-hooks", str(hooks), "-ip", "127.0.0.1",
                "-port", environment["PORT"], "-urlprefix", "webhooks"]

    return on_redis("adnanh-webhook", directory, command, ("XLEN", "webhooks"))


def bullmq(directory):
    at = INSTALLED / "express-bullmq"
    return on_redis("express-bullmq", directory, lambda _: ["node", str(at / "server.js")],
                    ("LLEN", "bull:webhooks:wait"), ["node", str(at / "worker.js")], NODE_ENV="production")


def fastapi(directory):
    command = [str(INSTALLED / "fastapi-redis" / "bin" / "python"), "-m", "uvicorn", "app:app",
               "--app-dir", str(SOURCES / "fastapi-redis"), "--host", "127.0.0.1", "--workers", workers(),
               "--loop", "uvloop", "--http", "httptools", "--backlog", str(servers.BACKLOG), "--no-access-log",
               "--log-level", "warning", "--port"]
    return on_redis("fastapi-redis", directory, lambda environment: [*command, environment["PORT"]],
                    ("XLEN", "webhooks"), PYTHONDONTWRITEBYTECODE="1")


@contextmanager
def express_postgres(directory):
    with postgres(directory) as (child, sockets):
        run_sql(sockets, (SOURCES / "express-postgres" / "schema.sql").read_text())
        port = machine.free_port()
        environment = {"PORT": str(port), "WEBHOOK_SECRET": SECRET, "PGHOST": sockets, "PGUSER": POSTGRES_USER,
                       "WORKERS": workers(), "POOL": str(pool()), "NODE_ENV": "production"}
        command = ["node", str(INSTALLED / "express-postgres" / "server.js")]
        with servers.process("express-postgres", command, environment, directory) as server:
            servers.wait_for("express-postgres", server, lambda: servers.listens(port))
            count = lambda: int(run_sql(sockets, "SELECT count(*) FROM webhooks"))
            yield Running(port, server.pid, {"postgres": child.pid}, count)


@contextmanager
def postgres(directory):
    """Runs a new PostgreSQL with its default settings, except for the number of connections. Yields its process and
    the directory of its socket."""
    programs = postgres_programs()
    data, sockets = tempfile.mkdtemp(prefix="postgres-", dir=directory), tempfile.mkdtemp(prefix="spillway-bench-")
    try:
        line = [*not_root(), f"{programs}/initdb", "-D", data, "-U", POSTGRES_USER, "-A", "trust", "--no-locale",
                "-E", "UTF8", "--no-sync"]
        made = subprocess.run(line, capture_output=True, text=True)
        if made.returncode:
            raise Failed(f"initdb: {made.stderr}")
        command = [*not_root(), f"{programs}/postgres", "-D", data, "-k", sockets, "-c", "listen_addresses=",
                   "-c", f"max_connections={int(workers()) * pool() + SPARE}"]
        with servers.process("postgres", command, {}, directory) as child:
            servers.wait_for("postgres", child, lambda: run_sql(sockets, "SELECT 1", must=False) == "1")
            yield child, sockets
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


def postgres_programs():
    """Returns the directory of the newest PostgreSQL: Debian does not have it on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda path: float(path.parent.name))
    if not found:
        raise Failed("PostgreSQL is missing: apt-get install postgresql")
    return found[-1]


def not_root():
    """PostgreSQL does not run as root. In a namespace, the same user has another number."""
    return ["unshare", "--map-user=65534", "--map-group=65534", "--"] if os.geteuid() == 0 else []


def run_sql(sockets, sql, must=True):
    line = ["psql", "-h", sockets, "-U", POSTGRES_USER, "-d", "postgres", "-qtA", "-v", "ON_ERROR_STOP=1", "-c", sql]
    out = subprocess.run(line, capture_output=True, text=True, timeout=STORE_SECONDS)
    if out.returncode and must:
        raise Failed(f"psql: {out.stderr}")
    return out.stdout.strip()


def by_path(variable, name, arguments, count):
    """Returns a function that runs a program whose path is given. `arguments` follow it, with the directory of its
    sources in place of {here}."""
    line = [argument.format(here=SOURCES / name) for argument in arguments]
    return lambda directory: on_redis(name, directory, lambda _: [os.environ[variable], *line], count, tcp=True)


def is_missing(name):
    return name in FETCHED and not (INSTALLED / FETCHED[name]).is_dir()


def version_of(*command):
    return lambda: machine.first_line(*command)


def node_versions(name):
    """Returns a function that names Node and the packages of a peer."""
    def versions():
        packages = json.loads((SOURCES / name / "package.json").read_text())["dependencies"]
        named = [f"{package} {version}" for package, version in packages.items()]
        return ", ".join([f"Node {machine.first_line('node', '--version').lstrip('v')}", *named])
    return versions


def python_versions():
    lines = (SOURCES / "fastapi-redis" / "requirements.txt").read_text().split()
    named = dict(line.split("==") for line in lines)
    python = machine.first_line(str(INSTALLED / "fastapi-redis" / "bin" / "python"), "--version")
    shown = ("fastapi", "uvicorn", "uvloop", "redis", "hiredis")
    return ", ".join([python, *(f"{name} {named[name]}" for name in shown)])


def lua_versions():
    packages = [path.name.partition("_")[2].rpartition("_")[0].replace("%3a", ":")
                for path in (INSTALLED / "debs").glob("libnginx-mod-http-lua_*")]
    return machine.first_line("nginx", "-v") + ", libnginx-mod-http-lua " + "".join(packages)


def postgres_version():
    version = machine.first_line(f"{postgres_programs()}/postgres", "--version")
    return f"{node_versions('express-postgres')()}, {version}"


RECEIVER = version_of(str(servers.RELEASE / "request-receiver"), "--version")
NOTHING = "nothing"
SYNCED = "the webhook, in Redis' AOF (`appendfsync always`)"
AS_REDIS = f"{SYNCED}, if it waits for Redis' answer"

PEERS = {
    "spillway-always": Peer("Spillway", SYNCED, lambda directory: spillway(directory, "always"), RECEIVER),
    "spillway-everysec": Peer(
        "Spillway, fsync each second", "the webhook in memory and in the kernel; on the disk up to 2 s later",
        lambda directory: spillway(directory, "everysec"), RECEIVER, if_named=True),
    "bare": Peer("bare axum server", NOTHING, bare, lambda: "`bench/src/bin/baseline.rs`"),
    "nginx-proxy": Peer("nginx, proxy to the backend", NOTHING, proxy, version_of("nginx", "-v")),
    "nginx-lua": Peer("nginx + Lua → Redis", SYNCED, nginx_lua, lua_versions),
    "fastapi-redis": Peer("FastAPI → Redis", SYNCED, fastapi, python_versions),
    "express-bullmq": Peer("Express → BullMQ", SYNCED, bullmq, node_versions("express-bullmq")),
    "express-postgres": Peer("Express → PostgreSQL", "the row, in PostgreSQL's WAL (`synchronous_commit` on)",
                             express_postgres, postgres_version),
    "adnanh-webhook": Peer("webhook (adnanh) → Redis", SYNCED, adnanh,
                           version_of(str(INSTALLED / "debian" / "usr" / "bin" / "webhook"), "-version")),
    "vector": Peer(
        "Vector → Redis", AS_REDIS,
        by_path("PEER_VECTOR", "vector", ["--config", "{here}/vector.yaml"], ("LLEN", "webhooks")),
        lambda: machine.first_line(os.environ["PEER_VECTOR"], "--version"), "PEER_VECTOR"),
    "redpanda-connect": Peer(
        "Redpanda Connect → Redis", AS_REDIS,
        by_path("PEER_REDPANDA_CONNECT", "redpanda-connect", ["run", "{here}/connect.yaml"], ("XLEN", "webhooks")),
        lambda: machine.first_line(os.environ["PEER_REDPANDA_CONNECT"], "--version"), "PEER_REDPANDA_CONNECT"),
    "other": Peer(
        os.environ.get("PEER_OTHER_NAME") or "another receiver", AS_REDIS,
        by_path("PEER_OTHER", "other", [], ("XLEN", "webhooks")), lambda: os.environ["PEER_OTHER"], "PEER_OTHER"),
}
