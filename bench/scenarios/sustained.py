"""Saturation with 64 connections, fsync before each answer, while the downstreamer drains to a
fast backend. Nothing may grow or slow down with time. The load generator, the receiver, Redis, the
downstreamer and the backend share the cores."""

import time
from statistics import median

from harness import sampler, servers, wrk
from harness.campaign import Findings

CONNECTIONS = 64
# Size at which the receiver rewrites the AOF: 4 x the memory in use + 4 GiB.
AOF_FACTOR, AOF_EXTRA_BYTES = 4, 4 << 30

# With a nearly empty queue, ten percent is less than one pack.
GROWTH_MIB = 16


def run(campaign):
    seconds, edge = campaign.scale(120, 6), campaign.scale(30, 2)
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory) as drain,
        servers.receiver(redis, campaign.secret, directory) as (child, port),
    ):
        pids = {"receiver": child.pid, "downstreamer": drain.pid, "redis": redis.child.pid}
        requests = campaign.requests()
        with wrk.running(port, CONNECTIONS, seconds + 30, campaign.wrk_threads, requests):
            time.sleep(1)
            with sampler.Sampler(redis.unix_socket, pids) as watch:
                for _ in range(seconds // 2):
                    time.sleep(2)
                    row = watch.samples[-1]
                    campaign.say(f"{row['seconds']:.0f} of {seconds} s, {row['appended']:,} stored, "
                                 f"Redis {row['memory_bytes'] >> 20} MiB")
    return findings(watch.samples, seconds, edge)


def findings(samples, seconds, edge):
    found = Findings()
    first = sampler.rate_between(samples, 0, edge + 0.5)
    last = sampler.rate_between(samples, samples[-1]["seconds"] - edge - 0.5, seconds + 60)
    quarter = max(1, len(samples) // 4)
    memory = [row["memory_bytes"] for row in samples]
    second, fourth = median(memory[quarter:2 * quarter]), median(memory[-quarter:])
    largest_aof = max(row["aof_bytes"] for row in samples)
    bound = AOF_FACTOR * max(memory) + AOF_EXTRA_BYTES
    found.figures = {"first_per_second": first, "last_per_second": last,
                     "memory_second_quarter_mib": second / 2**20,
                     "memory_last_quarter_mib": fourth / 2**20,
                     "aof_largest_mib": largest_aof / 2**20, "aof_bound_mib": bound / 2**20,
                     "aof_rewrites": samples[-1]["aof_rewrites"]}
    found.at_least(f"rate of the last {edge} s ÷ first {edge} s", last / first, 0.97)
    grown = (fourth - second) / 2**20
    found.at_most("growth of Redis memory, second to last quarter", grown,
                  max(0.1 * second / 2**20, GROWTH_MIB), "MiB")
    found.at_most("largest AOF ÷ what our rewrites allow", largest_aof / bound, 1)
    found.read(f"After {seconds} s at saturation the rate is {last / first:.0%} of what it was at the "
               f"start, {last:,.0f}/s stored; Redis holds {fourth / 2**20:.0f} MiB, its AOF grew to at most "
               f"{largest_aof / 2**20:,.0f} MiB and was rewritten {samples[-1]['aof_rewrites']} times.")
    found.rows["samples"] = samples
    plot_samples(found, samples)
    return found


def plot_samples(found, samples):
    rates = [(after["seconds"], (after["appended"] - before["appended"])
              / (after["seconds"] - before["seconds"])) for before, after in zip(samples, samples[1:])]
    found.plot("rate", "Webhooks stored per second", "seconds", "per second", {"rate": rates})
    found.plot("memory", "Redis memory and AOF", "seconds", "MiB", {
        "memory": [(row["seconds"], row["memory_bytes"] / 2**20) for row in samples],
        "AOF": [(row["seconds"], row["aof_bytes"] / 2**20) for row in samples]})
