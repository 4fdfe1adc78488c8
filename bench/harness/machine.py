"""Facts about the machine, and resource use of processes as reported by the operating system."""

import os
import platform
import socket
import subprocess
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """Returns user and system time of all threads of a process, including ended ones, and of the
    children it has reaped (Redis rewrites its AOF in one)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The command, in parentheses, may contain spaces, so fields are counted after it.
    fields = stat.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_SECOND


def family_cpu_seconds(pid):
    """Returns the CPU time of a process and its children, such as the workers of nginx."""
    return cpu_seconds(pid) + sum(map(cpu_seconds_or_0, children(pid)))


def children(pid):
    """Returns the process ids of a process' children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def tree_cpu_seconds(pid):
    """Returns the CPU time of a process and all its descendants, such as the workers of a cluster and theirs."""
    try:
        lists = [task.joinpath("children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return cpu_seconds_or_0(pid) + sum(tree_cpu_seconds(int(child)) for children in lists for child in children.split())


def cpu_seconds_or_0(pid):
    """Returns 0 for a process that has ended: the time of a child that was reaped is its parent's."""
    try:
        return cpu_seconds(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


class Usage:
    """CPU of processes since it was created."""

    def __init__(self, pids, seconds=family_cpu_seconds):
        self.pids, self.seconds = pids, seconds
        self.before = self.now()

    def now(self):
        return {name: self.seconds(pid) for name, pid in self.pids.items()}

    def each_us(self, count):
        """Returns the microseconds of each process for each of `count` webhooks."""
        now = self.now()
        return {f"{name}_cpu_us": (now[name] - self.before[name]) / max(count, 1) * 1e6 for name in self.pids}


def resident_bytes(pid):
    """Returns the resident memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def available_bytes():
    """Returns the memory that is available without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024


def facts():
    """Returns the facts that a reader needs to assess the figures."""
    model = next(
        (line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if "model name" in line),
        platform.machine(),
    )
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if "MemTotal" in line)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model,
        "memory_gib": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "commit": first_line("git", "describe", "--always", "--dirty", "--exclude=*"),
        "rustc": first_line("rustc", "--version"),
        "redis": first_line("redis-server", "--version"),
        "wrk": first_line("wrk", "--version").partition("Copyright")[0].strip(),
    }


def first_line(*command):
    """Returns the first line that a command prints. wrk prints its version and fails, which is expected."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return "missing"
    return (out.stdout or out.stderr).partition("\n")[0].strip()


def free_port():
    """Returns a loopback port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
