"""A queue of a million webhooks is drained into Kafka, exactly once, in transactions. Before and after, a
plain idempotent librdkafka producer sends the same bodies to the same broker. Measures the rate and the
CPU per record of each. Run only by `make characterize-kafka`."""

import json
import resource
import subprocess
import time

from harness import fill, machine, sampler, servers
from harness.campaign import Findings
from harness.servers import RELEASE, ROOT, Failed

COUNT = 1_000_000
EACH, FILL_CONNECTIONS = 10, 50
WEBHOOK_BYTES, SPARE_BYTES = 1_500, 256 << 20
RATE_BY_PLAIN_MIN, CPU_BY_PLAIN_MAX, MEMORY_MIB_MAX = 0.8, 2.0, 512
FILL_RATE_MIN, DRAIN_RATE_MIN = 3_000, 1_500


def run(campaign):
    found, count = Findings(), campaign.scale(COUNT, 40_000)
    maxmemory = count * WEBHOOK_BYTES + SPARE_BYTES
    with servers.redis("always", campaign.directory, "--maxmemory", str(maxmemory)) as redis:
        with servers.receiver(redis, campaign.secret, campaign.directory) as (_, port):
            filled = fill.run(port, count, campaign.secret, 60 + count / FILL_RATE_MIN,
                              products=count // EACH, shops=100, connections=FILL_CONNECTIONS)
            campaign.say(f"{count:,} queued at {filled['per_second']:,.0f}/s")
        with servers.kafka(campaign.directory) as (broker, address):
            # The first user of a broker warms it up, and later ones use a warmer machine. Therefore
            # the plain producer runs before and after.
            plain(address, broker, "warm-up", count // 10)
            before = plain(address, broker, "before", count)
            drained = drain(campaign, redis, broker, address, count)
            after = plain(address, broker, "after", count)
    other = {name: (before[name] + after[name]) / 2 for name in ("per_second", "cpu_us", "broker_cpu_us")}
    found.figures |= {"plain_before_per_second": before["per_second"],
                      "plain_after_per_second": after["per_second"]}
    judge(found, count, drained, other)
    return found


def plain(address, broker, topic, count):
    """Returns the report of the plain producer, and its CPU and the broker's per record."""
    line = [str(RELEASE / "produce"), "--servers", address, "--topic", topic, "--count", str(count),
            "--targets", str(ROOT / "loadtest")]
    before, broker_before = children_seconds(), machine.cpu_seconds(broker.pid)
    out = subprocess.run(line, check=True, capture_output=True, timeout=600).stdout
    said = json.loads(out)
    return {**said, "cpu_us": (children_seconds() - before) / count * 1e6,
            "broker_cpu_us": (machine.cpu_seconds(broker.pid) - broker_before) / count * 1e6}


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def drain(campaign, redis, broker, address, count):
    asker, pids = sampler.Asker(redis.unix_socket), {"redis": redis.child.pid, "broker": broker.pid}
    before = {name: machine.cpu_seconds(pid) for name, pid in pids.items()}
    with servers.kafka_producer(redis, address, campaign.directory) as child:
        began, deadline = time.monotonic(), time.monotonic() + 60 + count / DRAIN_RATE_MIN
        with sampler.Sampler(redis.unix_socket, {"kafka_producer": child.pid}, 0.5) as watch:
            while (trimmed := int(asker.ask("HGET {spillway}:counts trimmed") or 0)) < count:
                if time.monotonic() > deadline:
                    raise Failed(f"{count - trimmed:,} still queued")
                time.sleep(0.02)
        seconds = time.monotonic() - began
        cpu = {name: machine.cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        cpu["kafka_producer"] = machine.cpu_seconds(child.pid)
    asker.close()
    memory = max(row["kafka_producer_rss_bytes"] for row in watch.samples) / 2**20
    return {"per_second": count / seconds, "memory_mib": memory, "samples": watch.samples,
            **{f"{name}_cpu_us": used / count * 1e6 for name, used in cpu.items()}}


def judge(found, count, drained, other):
    own, plain_cpu = drained["kafka_producer_cpu_us"], other["cpu_us"]
    by_plain = drained["per_second"] / other["per_second"]
    found.figures |= {
        "webhooks": count, "drained_per_second": drained["per_second"],
        "plain_per_second": other["per_second"], "rate_by_plain": by_plain,
        "kafka_producer_cpu_us": own, "plain_cpu_us": plain_cpu, "cpu_by_plain": own / plain_cpu,
        "redis_cpu_us": drained["redis_cpu_us"], "broker_cpu_us": drained["broker_cpu_us"],
        "broker_cpu_us_of_plain": other["broker_cpu_us"], "memory_mib": drained["memory_mib"]}
    found.at_least("rate beside the plain producer's", by_plain, RATE_BY_PLAIN_MIN)
    found.at_most("CPU for each record beside the plain producer's", own / plain_cpu, CPU_BY_PLAIN_MAX)
    found.at_most("memory of the Kafka producer", drained["memory_mib"], MEMORY_MIB_MAX, "MiB")
    found.read(f"{count:,} webhooks are drained into Kafka at {drained['per_second']:,.0f}/s, in "
               f"{drained['memory_mib']:.0f} MiB; the plain producer sends the same bodies at "
               f"{other['per_second']:,.0f}/s. Each costs the Kafka producer {own:.1f} µs of CPU, the "
               f"plain one {plain_cpu:.1f}, Redis {drained['redis_cpu_us']:.1f}, the broker "
               f"{drained['broker_cpu_us']:.1f} and {other['broker_cpu_us']:.1f}.")
    found.rows["samples"] = drained["samples"]
