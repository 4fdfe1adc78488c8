"""Processor weights as on a machine where the units run: each measured process has a cgroup with the
CPUWeight= of its unit. Load generators and backends, which belong on other machines, have a large one. Without
cgroups that can be written, all have the same weight, as tasks of one group."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"redis": "redis", "receiver": "receiver", "downstreamer": "downstreamer", "kafka_producer": "kafka",
         "archiver": "archiver"}
USUAL, OTHERS = 100, 1_000
# Weight of all measured processes together, against what else runs here.
TOGETHER = 10_000
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
NAME = f"spillway-bench-{os.getpid()}"


def weight_of(name):
    """Returns the weight of a process by its name in the harness, such as `receiver` or `receiver-2`."""
    unit = UNITS.get(re.sub(r"-\d+$", "", name))
    if unit is None:
        return OTHERS
    text = (ROOT / "ops" / "systemd" / f"spillway-{unit}.service").read_text()
    found = re.search(r"^CPUWeight=(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else USUAL


def parent():
    """Returns the directory in which groups are made, made itself on the first call, and how a weight is
    written there; None without cgroups."""
    if (V1 / "cpu.shares").exists():
        return made(V1 / NAME, TOGETHER, v1), v1
    control = V2 / "cgroup.subtree_control"
    if control.exists() and "cpu" in control.read_text().split():
        directory = made(V2 / NAME, TOGETHER, v2)
        (directory / "cgroup.subtree_control").write_text("+cpu")
        return directory, v2
    return None


def v1(directory, weight):
    # 1,024 shares are a weight of 100.
    (directory / "cpu.shares").write_text(str(max(2, weight * 1024 // 100)))


def v2(directory, weight):
    (directory / "cpu.weight").write_text(str(weight))


def made(directory, weight, write):
    if not directory.exists():
        directory.mkdir()
        write(directory, weight)
    return directory


def joining(name):
    """Returns what a new process does before it runs: it joins the group of its name. None without cgroups."""
    try:
        above = parent()
        if above is None:
            return None
        directory, write = above
        procs = made(directory / name, weight_of(name), write) / "cgroup.procs"
    except OSError:
        return None
    return lambda: procs.write_text(str(os.getpid()))


def are_set():
    """Returns True if the processes have the weights of their units."""
    return joining("none") is not None


def remove():
    """Removes the groups, which are empty."""
    for base in (V1, V2):
        directory = base / NAME
        if directory.exists():
            for group in [path for path in directory.iterdir() if path.is_dir()]:
                group.rmdir()
            directory.rmdir()
