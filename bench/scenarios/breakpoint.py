"""An open loop whose rate rises in steps from 30 % of saturation by 10 % of it. It ends when the p99
is above 1 s, more than 0.1 % of the answers are not 200, or the rate is 200 %. Steps above 80 % are
stress. Vegeta shares the cores and uses about as much CPU as the receiver. Therefore saturation is that
of a closed loop of vegeta with as many connections, 1,000, just before on the same cell. A step counts
by the offered rate, not by the requested rate. When connections or cores run out, vegeta offers less
than requested; two such steps in a row end the run. The rate of wrk, which uses little CPU, with 64
connections is shown for comparison."""

from harness import load, servers, vegeta
from harness.campaign import Findings

CONNECTIONS, WRK_CONNECTIONS = 1_000, 64
FIRST, STEP, LAST = 30, 10, 200
P99_MS_MAX, WRONG_MAX = 1_000, 0.001
# Below this part of the requested rate, the generator is the limit.
SHORT = 0.9
USUAL_PERCENT = 70


def run(campaign):
    directory, seconds = campaign.directory, campaign.scale(8, 2)
    with servers.redis("always", directory) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (child, port):
            pids = {"server": child.pid, "redis": redis.child.pid}
            settings = campaign.load(campaign.scale(8, 1))
            by_wrk = load.measure(
                port, pids, redis, WRK_CONNECTIONS, settings, campaign.requests())["per_second"]
            with campaign.prepared(port, vegeta.TARGETS_MAX, seconds, CONNECTIONS) as attack:
                saturation = closed_loop(attack)
                campaign.say(f"saturation {saturation:,.0f}/s, by wrk {by_wrk:,.0f}/s")
                rows = climb(campaign, attack, saturation)
    return findings(rows, saturation, by_wrk)


def closed_loop(attack):
    """Returns the accepted rate if each connection sends its next webhook as soon as possible."""
    attack.rate = vegeta.CLOSED
    attack.run()
    hits = attack.hits()
    return vegeta.answered_per_second(hits, 200, hits[0][0], hits[-1][0])


def climb(campaign, attack, saturation):
    rows = []
    for percent in range(FIRST, LAST + 1, campaign.scale(STEP, 40)):
        attack.rate = int(saturation * percent / 100)
        attack.run()
        row = step(percent, attack.rate, attack.hits(), saturation)
        rows.append(row)
        campaign.say(f"{percent} % asked: {row['offered_per_second']:,.0f}/s offered, "
                     f"p99 {row['p99_ms']:,.0f} ms, {row['not_200']} not 200")
        if not row["held"] or all(one["short"] for one in rows[-2:]) and len(rows) > 1:
            break
    return rows


def step(percent, asked, hits, saturation):
    """Runs one rate. Returns the offered rate and the answers. Latencies are of all answers."""
    seconds = max(1e-3, hits[-1][0] - hits[0][0])
    offered = len(hits) / seconds
    wrong = sum(status != 200 for _, status, _, _ in hits)
    accepted = vegeta.answered_per_second(hits, 200, hits[0][0], hits[-1][0])
    row = {"asked_percent": percent, "asked_per_second": asked, "offered_per_second": offered,
           "offered_of_saturation": offered / saturation, "accepted_per_second": accepted,
           "not_200": wrong, "wrong": wrong / len(hits),
           **{f"p{p}_ms": vegeta.p_ms(hits, p) for p in (50, 90, 99)}}
    row["held"] = row["p99_ms"] <= P99_MS_MAX and row["wrong"] <= WRONG_MAX
    row["short"] = offered < SHORT * asked
    return row


def findings(rows, saturation, by_wrk):
    found = Findings()
    usual = [row for row in rows if row["offered_of_saturation"] <= USUAL_PERCENT / 100 + 0.01]
    held = max((row["offered_per_second"] for row in rows if row["held"]), default=0)
    broken = next((row for row in rows if not row["held"]), None)
    found.figures = {"saturation_per_second": saturation, "saturation_by_wrk_per_second": by_wrk,
                     "highest_held_per_second": held,
                     "broke_at_per_second": broken and broken["offered_per_second"],
                     "highest_offered_per_second": max(row["offered_per_second"] for row in rows)}
    upto = f"up to {USUAL_PERCENT} % of saturation"
    found.at_most(f"p90 {upto}", max((row["p90_ms"] for row in usual), default=None), 100, "ms")
    found.at_most(f"not 200 {upto}", max((row["wrong"] * 100 for row in usual), default=None), 0.1, "%")
    found.at_least("breaking point ÷ saturation", held / saturation, 0.8)
    found.rows["steps"] = rows
    read(found, rows, saturation, held, broken)
    over = lambda key: [(row["offered_per_second"], row[key]) for row in rows]
    found.plot("rate", "Accepted over offered", "webhooks offered per second", "accepted per second",
               {"accepted": over("accepted_per_second"),
                "all of it": [(row["offered_per_second"],) * 2 for row in rows]})
    found.plot("latency", "Latency over offered", "webhooks offered per second", "ms (logarithmic)",
               {"p50": over("p50_ms"), "p90": over("p90_ms"), "p99": over("p99_ms")}, log_y=True)
    return found


def read(found, rows, saturation, held, broken):
    if broken:
        found.read(f"It breaks at {broken['offered_per_second']:,.0f} offered a second: p99 "
                   f"{broken['p99_ms']:,.0f} ms, {broken['wrong'] * 100:.2g} % not 200.")
    else:
        found.read(f"It does not break: at {held:,.0f}/s, {held / saturation * 100:.0f} % of "
                   "saturation, the cores it shares with the load generator give no more.")
    stress = [row for row in rows if row["asked_percent"] > 80 and row["held"]]
    if stress:
        longest = max(row["p99_ms"] for row in stress)
        found.read(f"Under stress, with more than 80 % asked for, the p99 stays within "
                   f"{longest:,.0f} ms in the steps that held.")
