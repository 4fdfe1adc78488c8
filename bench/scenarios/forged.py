"""A flood of forged webhooks, which are signed with a wrong secret. Measures the cost of refusing one,
compared with the bare server, which reads and checks the same and also answers 401."""

from statistics import median

from harness import load, servers
from harness.campaign import WRONG_SECRET, Findings

CONNECTIONS = 64


def run(campaign):
    found, rows = Findings(), []
    settings, directory = campaign.load(campaign.scale(8, 2)), campaign.directory
    requests = campaign.requests(secret=WRONG_SECRET)
    for number in range(1, campaign.scale(5, 1) + 1):
        with servers.baseline(campaign.secret, directory) as (child, port):
            pids = {"server": child.pid}
            bare = load.measure(port, pids, None, CONNECTIONS, settings, requests, "refused")
        with servers.redis("always", directory) as redis:
            with servers.receiver(redis, campaign.secret, directory) as (child, port):
                pids = {"server": child.pid, "redis": redis.child.pid}
                ours = load.measure(port, pids, redis, CONNECTIONS, settings, requests, "refused")
        rows.append({"round": number, "cpu_us": ours["cpu_us"], "bare_cpu_us": bare["cpu_us"],
                     "ratio": ours["cpu_us"] / bare["cpu_us"], "per_second": ours["per_second"],
                     "bare_per_second": bare["per_second"], "p99_ms": ours["p99_ms"],
                     "not_refused": ours["not_200"]})
        campaign.say(f"round {number}: {ours['cpu_us']:.1f} µs, the bare server {bare['cpu_us']:.1f} µs")
    found.figures = {key: median(row[key] for row in rows)
                     for key in ("cpu_us", "bare_cpu_us", "per_second", "bare_per_second")}
    found.at_most("CPU ÷ the bare server's", median(row["ratio"] for row in rows), 1)
    found.at_most("forged ones that were not refused", sum(row["not_refused"] for row in rows), 0)
    found.read(f"Refusing a forged webhook takes {found.figures['cpu_us']:.1f} µs of CPU, the bare "
               f"server takes {found.figures['bare_cpu_us']:.1f} µs; {found.figures['per_second']:,.0f} of "
               f"them a second are refused with {CONNECTIONS} connections.")
    found.rows["rounds"] = rows
    found.plot("cpu", "CPU per forged webhook", "round", "µs", {
        "receiver": [(row["round"], row["cpu_us"]) for row in rows],
        "bare server": [(row["round"], row["bare_cpu_us"]) for row in rows]}, even_x=True)
    return found
