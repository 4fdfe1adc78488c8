"""Bodies of 500 B to 1 MB: CPU per webhook of the receiver and of Redis, compared with the bare server at
the same size, with fsync before each answer."""

from statistics import median

from harness import load, servers
from harness.campaign import Findings

SIZES = [500, 5_300, 51_200, 1_048_576]
CONNECTIONS = 64
# Few rounds of large bodies, because the queue is not drained meanwhile.
SECONDS_BY_SIZE = {1_048_576: 4}


def run(campaign):
    found, rows = Findings(), []
    for size in campaign.scale(SIZES, [5_300, 1_048_576]):
        requests = campaign.requests(size)
        seconds = campaign.scale(SECONDS_BY_SIZE.get(size, 8), 1)
        rounds = [one_round(campaign, size, requests, seconds) for _ in range(campaign.scale(3, 1))]
        row = {"body_bytes": size, **{key: median(one[key] for one in rounds) for key in rounds[0]}}
        row["cpu_ratio"] = row["cpu_us"] / row["bare_cpu_us"]
        rows.append(row)
        campaign.say(f"{size:,} B: {row['cpu_us']:.1f} µs, the bare server {row['bare_cpu_us']:.1f} µs")
        if size >= 1 << 20:
            requests.unlink()
    found.figures = {f"cpu_by_bare_at_{row['body_bytes']}": row["cpu_ratio"] for row in rows}
    found.at_most("CPU at 1 MB ÷ the bare server's", rows[-1]["cpu_ratio"], 4)
    first, last = rows[0], rows[-1]
    found.read(f"A webhook of {first['body_bytes']:,} bytes takes {first['cpu_us']:.0f} µs of CPU, "
               f"{first['cpu_ratio']:.1f} × the bare server's; one of {last['body_bytes']:,} bytes "
               f"{last['cpu_us']:,.0f} µs, {last['cpu_ratio']:.1f} ×.")
    found.rows["sizes"] = rows
    found.plot("cpu", "CPU per webhook by body size", "body bytes", "µs", {
        "receiver + Redis": [(row["body_bytes"], row["cpu_us"]) for row in rows],
        "bare server": [(row["body_bytes"], row["bare_cpu_us"]) for row in rows]}, even_x=True)
    found.plot("ratio", "CPU against the bare server's", "body bytes", "×", {
        "ratio": [(row["body_bytes"], row["cpu_ratio"]) for row in rows]}, even_x=True)
    return found


def one_round(campaign, size, requests, seconds):
    settings, directory = campaign.load(seconds), campaign.directory
    with servers.baseline(campaign.secret, directory) as (child, port):
        bare = load.measure(port, {"server": child.pid}, None, CONNECTIONS, settings, requests)
    with servers.redis("always", directory) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (child, port):
            pids = {"server": child.pid, "redis": redis.child.pid}
            ours = load.measure(port, pids, redis, CONNECTIONS, settings, requests)
    return {"per_second": ours["per_second"], "bare_per_second": bare["per_second"],
            "cpu_us": ours["cpu_us"], "bare_cpu_us": bare["cpu_us"], "p99_ms": ours["p99_ms"],
            "memory_bytes": ours["memory_bytes"], "aof_bytes": ours["aof_bytes"],
            "not_200": ours["not_200"]}
