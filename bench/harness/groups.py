"""Groups for processor time, with the weights of the systemd units: so a scenario divides the cores as an
installation does. `WEIGHTS=downstreamer=100,redis=200` in the environment replaces some, to compare; `WEIGHTS=none`
makes no groups."""

import itertools
import os
import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from . import machine
from .servers import ROOT

# A backend on the same machine has the weight of the process that waits for it, as docs/sizing.md advises; so has a proxy
# that is measured in the downstreamer's place.
UNITS = {"receiver": "spillway-receiver", "downstreamer": "spillway-downstreamer", "redis": "spillway-redis",
         "kafka_producer": "spillway-kafka", "archiver": "spillway-archiver", "backend": "spillway-downstreamer",
         "nginx": "spillway-downstreamer"}
# systemd's weight of a unit that sets none, and the same for the first version of cgroups.
WEIGHT_USUAL, SHARES_USUAL = 100, 1024
numbers = itertools.count()


def weight(name):
    """Returns `CPUWeight=` of the unit that runs a process, or the usual one for a process of no unit."""
    if name in (replaced := others()):
        return replaced[name]
    unit = ROOT / "ops" / "systemd" / f"{UNITS.get(name)}.service"
    found = re.search(r"^CPUWeight=(\d+)$", unit.read_text(), re.MULTILINE) if name in UNITS else None
    return int(found[1]) if found else WEIGHT_USUAL


def others():
    """Returns the weights by name that the environment sets."""
    return {name: int(value) for name, _, value in
            (part.partition("=") for part in os.environ.get("WEIGHTS", "").split(",") if part not in ("", "none"))}


def controller():
    """Returns the directory in which groups for processor time are made here, and the name of the file and the
    value that stand for the usual weight. `None` if there is none here, or none is wanted."""
    if os.environ.get("WEIGHTS") == "none":
        return None
    mounts = [line.split()[:4] for line in Path("/proc/mounts").read_text().splitlines()]
    for _, path, kind, options in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(path), "cpu.shares", SHARES_USUAL
    for _, path, kind, _ in mounts:
        if kind == "cgroup2" and "cpu" in Path(path, "cgroup.controllers").read_text().split():
            if "cpu" not in Path(path, "cgroup.subtree_control").read_text().split():
                return None
            return Path(path), "cpu.weight", WEIGHT_USUAL
    return None


def home(pid, root):
    """Returns the directory of the group that a process is in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:
            directory = root / path.lstrip("/")
            if directory.is_dir():
                return directory
    return root


@contextmanager
def as_units(pids):
    """Gives each process, with its children, a group with the weight of its unit, until the block ends. Yields the
    weights by name, or nothing where groups can't be made: then the kernel divides by thread."""
    found = controller()
    if found is None:
        yield {}
        return
    root, file, usual = found
    weights, made = {name: weight(name) for name in pids}, []
    try:
        try:
            for name, pid in pids.items():
                group = root / f"spillway-bench-{os.getpid()}-{next(numbers)}"
                group.mkdir()
                made.append((group, home(pid, root)))
                (group / file).write_text(str(usual * weights[name] // WEIGHT_USUAL))
                for one in (pid, *machine.children(pid)):
                    (group / "cgroup.procs").write_text(str(one))
        except OSError:
            weights = {}
            while made:
                remove(*made.pop())
        yield weights
    finally:
        while made:
            remove(*made.pop())


def remove(group, back_to):
    """Removes a group, whose processes go back to where they came from."""
    try:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (back_to / "cgroup.procs").write_text(pid)
        group.rmdir()
    except OSError as error:
        print(f"{group} could not be removed: {error}", file=sys.stderr)
