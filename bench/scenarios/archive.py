"""A queue of a million webhooks is archived into a directory. Measures the rate, the CPU of the archiver and of
Redis per webhook, and the bytes of the archive beside those of the packs in Redis."""

import subprocess
import time
from pathlib import Path

from harness import fill, machine, sampler, servers
from harness.campaign import Findings
from harness.servers import Failed

COUNT = 1_000_000
EACH, FILL_CONNECTIONS = 10, 50
WEBHOOK_BYTES, SPARE_BYTES = 1_500, 256 << 20
FILL_RATE_MIN, ARCHIVE_RATE_MIN = 3_000, 3_000
CPU_US_MAX, BYTES_BY_PACKS_MAX, MEMORY_MIB_MAX = 15, 1.05, 512
# Sums the packs of some entries: KEYS 1 stream, ARGV 1 the entry after which to begin.
PACKS = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 500)
local bytes, last = 0, ''
for _, entry in ipairs(found) do
  last = entry[1]
  bytes = bytes + #entry[2][2]
end
return {last, bytes, #found}
"""


def run(campaign):
    found, count = Findings(), campaign.scale(COUNT, 20_000)
    maxmemory = count * WEBHOOK_BYTES + SPARE_BYTES
    with servers.redis("always", campaign.directory, "--maxmemory", str(maxmemory)) as redis:
        with servers.receiver(redis, campaign.secret, campaign.directory) as (_, port):
            filled = fill.run(port, count, campaign.secret, 60 + count / FILL_RATE_MIN,
                              products=count // EACH, shops=100, connections=FILL_CONNECTIONS)
            campaign.say(f"{count:,} queued at {filled['per_second']:,.0f}/s")
        packs, pack_bytes = packs_of(redis)
        archived = archive(campaign, redis, count)
    judge(found, count, (packs, pack_bytes), archived)
    return found


def packs_of(redis):
    """Returns the number of packs in the queue, and their bytes."""
    last, packs, total = "0", 0, 0
    while True:
        line = ["redis-cli", "-s", redis.unix_socket, "EVAL", PACKS, "1", "{spillway}:in", last]
        out = subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout.split()
        if len(out) != 3:
            return packs, total
        last, packs, total = out[0], packs + int(out[2]), total + int(out[1])


def archive(campaign, redis, count):
    """Runs an archiver until all is archived and freed."""
    directory = Path(campaign.directory) / "archive"
    directory.mkdir()
    redis_before = machine.cpu_seconds(redis.child.pid)
    asker = sampler.Asker(redis.unix_socket)
    with servers.archiver(redis, directory, campaign.directory) as child:
        began, deadline = time.monotonic(), time.monotonic() + 60 + count / ARCHIVE_RATE_MIN
        with sampler.Sampler(redis.unix_socket, {"archiver": child.pid}, 0.5) as watch:
            while (trimmed := int(asker.ask("HGET {spillway}:counts trimmed") or 0)) < count:
                if time.monotonic() > deadline:
                    raise Failed(f"{count - trimmed:,} are not archived")
                time.sleep(0.02)
        seconds = time.monotonic() - began
        cpu, redis_cpu = machine.cpu_seconds(child.pid), machine.cpu_seconds(redis.child.pid) - redis_before
    asker.close()
    objects = list(directory.rglob("*.spwa"))
    return {"per_second": count / seconds, "cpu_us": cpu / count * 1e6, "redis_cpu_us": redis_cpu / count * 1e6,
            "objects": len(objects), "bytes": sum(path.stat().st_size for path in objects),
            "memory_mib": max(row["archiver_rss_bytes"] for row in watch.samples) / 2**20,
            "samples": watch.samples}


def judge(found, count, queued, archived):
    packs, pack_bytes = queued
    by_packs = archived["bytes"] / pack_bytes
    found.figures |= {
        "webhooks": count, "packs": packs, "objects": archived["objects"],
        "per_second": archived["per_second"], "cpu_us": archived["cpu_us"],
        "redis_cpu_us": archived["redis_cpu_us"], "memory_mib": archived["memory_mib"],
        "bytes_per_webhook": archived["bytes"] / count, "pack_bytes_per_webhook": pack_bytes / count}
    found.at_most("CPU of the archiver for each webhook", archived["cpu_us"], CPU_US_MAX, "µs")
    found.at_most("bytes of the archive ÷ bytes of the packs", by_packs, BYTES_BY_PACKS_MAX)
    found.at_most("memory of the archiver", archived["memory_mib"], MEMORY_MIB_MAX, "MiB")
    found.read(f"{count:,} webhooks in {packs:,} packs become {archived['objects']:,} objects at "
               f"{archived['per_second']:,.0f}/s. Each costs the archiver {archived['cpu_us']:.1f} µs of CPU and "
               f"Redis {archived['redis_cpu_us']:.1f} µs. The archive has {by_packs:.3f} × the bytes of the packs. "
               f"The archiver needs {archived['memory_mib']:.0f} MiB.")
    found.rows["samples"] = archived["samples"]
