"""Secrets by shop from an endpoint that takes 200 ms, each valid for 2 s: 5,000 webhooks a second of 1,000
shops, beside the same secrets in files, and beside a receiver that looks up only what is too old. Then
the endpoint hangs for 5 minutes. Then a stranger names a million shops. At last closed loops of 10 to 255
senders, with files and with an endpoint that takes several shops in a request, in turn for 50 ms. wrk and pace are used, because
siege sends the same headers with each request and so names one shop alone. Every shop has the same secret;
the receiver does not know."""

import os
import random
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median

from harness import machine, servers, wrk
from harness.campaign import Findings
from harness.servers import RELEASE, Failed
from harness.vegeta import p_ms

SHOPS = 1000
RATE = 5000
TTL = 2
# Rounds of files and endpoint; every fourth has the other kinds, too.
STEADY_ROUNDS = 12
SENDERS = [10, 25, 50, 100, 255]
# Shops that a stranger names, and connections that name them.
NAMED, STRANGERS = 1_000_000, 128
# Good webhooks beside them: as many for each shop as without them.
GOOD_RATE, GOOD_SHOPS = 2500, 500
LOOKUPS_A_SECOND = 100
KINDS = {"files": "secrets in files", "endpoint": "endpoint", "together": "endpoint, several shops in a request",
         "late": "endpoint, not looked up early"}
# Seconds for which one of two receivers is loaded before the other is: less than a lookup is early.
SLICE = 0.05
# Outcomes that would lower a rate. All at once less the accepted ones would count those in flight between two reads.
REFUSED = ["secrets_unavailable", "bad_signature", "ack_timeout", "overloaded", "queue_unavailable", "queue_full"]
# Senders whose bodies come late, how often, and what each sends.
LATE, LATE_ROUNDS, LATE_BYTES = 2000, 8, 5300
# Kinds that closed loops of senders compare.
ASKED = ["files", "together"]

# Names a new shop with each request, signed with nothing.
STRANGER = """
local n = 0
function setup(thread) thread:set("slice", tostring(thread)) end
function init() wrk.method = "POST"; wrk.body = "{}" end
function delay() return 8 end
function request()
   n = n + 1
   wrk.headers["X-Shopify-Shop-Domain"] = "s" .. n .. slice:sub(-6) .. ".example.com"
   wrk.headers["X-Shopify-Topic"] = "products/update"
   wrk.headers["X-Shopify-Hmac-Sha256"] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
   return wrk.format()
end
"""


def run(campaign):
    found = Findings()
    rounds, seconds = campaign.scale(STEADY_ROUNDS, 1), campaign.scale(10, 3)
    rows = []
    for number in range(rounds):
        # The machine changes within minutes, so files and endpoint follow each other, each first in turn.
        pair = ["files", "endpoint"][::1 if number % 2 == 0 else -1]
        for kind in pair + (["together", "late"] if number % 4 == 0 else []):
            rows.append({"round": number, "kind": kind, **steady(campaign, kind, seconds)})
            campaign.say(f"{KINDS[kind]}: p99 {rows[-1]['p99_ms']:.2f} ms, "
                         f"{rows[-1]['times_least']:.2f} x the least lookups")
    found.rows["steady"] = rows
    of = lambda kind, key: [row[key] for row in rows if row["kind"] == kind]
    middle = lambda kind, key: median(of(kind, key))
    ratio = median(ours / theirs for ours, theirs in zip(of("endpoint", "p99_ms"), of("files", "p99_ms")))
    found.figures = {f"{kind}_{key}": middle(kind, key) for kind in KINDS
                     for key in ("p50_ms", "p99_ms", "times_least", "waited_share")}
    found.at_most("p99 ÷ that with files, median of the rounds", ratio, 1.2)
    found.at_most("lookups ÷ the least possible", middle("endpoint", "times_least"), 1.3)
    found.at_least("p99 ÷ that with files, not looked up early",
                   middle("late", "p99_ms") / middle("files", "p99_ms"), 5)
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.read(f"At {RATE:,} webhooks a second of {SHOPS:,} shops, p99 is {middle('endpoint', 'p99_ms'):.1f} ms with the "
               f"endpoint, {middle('files', 'p99_ms'):.1f} ms with files, and {middle('late', 'p99_ms'):.0f} ms if "
               f"nothing is looked up early; lookups are {middle('endpoint', 'times_least'):.2f} × the least possible.")
    outage(campaign, found)
    strangers(campaign, found)
    senders(campaign, found)
    return found


@contextmanager
def started(campaign, kind, rate=10_000, ttl=TTL, durability="everysec"):
    """Runs a receiver with secrets by shop. Yields it, its port, Redis, and the endpoint's process."""
    directory = campaign.directory
    settings = {"SHOP_SECRETS_TTL": f"{ttl}s", "SHOP_SECRETS_RATE": str(rate)}
    program = RELEASE / ("examples/late_secrets" if kind == "late" else "request-receiver")
    with servers.redis(durability, directory) as redis, \
            servers.secrets(directory, campaign.secret, "200ms", kind == "together") as (endpoint, url):
        if kind == "files":
            settings = {"SHOP_SECRETS_DIR": str(files(campaign))}
        else:
            settings["SHOP_SECRETS_URL"] = url
        with servers.receiver(redis, "", directory, program, **settings) as (child, port):
            yield child, port, redis, endpoint


def files(campaign):
    directory = campaign.directory / "shop-secrets"
    directory.mkdir(exist_ok=True)
    for shop in range(SHOPS):
        (directory / f"shop-{shop:04}.myshopify.com").write_text(campaign.secret)
    return directory


def lookups(child):
    name = "spillway_secret_lookups_total"
    return sum(servers.counter(child.admin, name, f'"{outcome}"') for outcome in ("found", "unknown", "failed"))


def steady(campaign, kind, seconds):
    with started(campaign, kind) as (child, port, _, endpoint):
        # It stands for another machine. Without this, it would take the receiver's cores from it at each lookup.
        for thread in os.listdir(f"/proc/{endpoint.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)
        campaign.pace(port, RATE, 2 * TTL, SHOPS)
        before = lookups(child)
        _, hits = campaign.pace(port, RATE, seconds, SHOPS)
        made = lookups(child) - before
    waited = sum(1 for _, _, latency, _ in hits if latency >= 0.05)
    return {"p50_ms": p_ms(hits, 50), "p99_ms": p_ms(hits, 99),
            "times_least": made / (SHOPS * seconds / TTL), "waited_share": waited / len(hits),
            "not_200": sum(1 for _, status, _, _ in hits if status != 200)}


def outage(campaign, found):
    """The endpoint hangs: it is stopped, so that lookups end by their time-out."""
    seconds = campaign.scale(300, 8)
    with started(campaign, "endpoint") as (_, port, _, endpoint):
        # Every shop is known by then: one that is not can't be looked up.
        campaign.pace(port, RATE, 3 * TTL, SHOPS)
        os.kill(endpoint.pid, signal.SIGSTOP)
        try:
            _, hits = campaign.pace(port, 1000, seconds, SHOPS)
        finally:
            os.kill(endpoint.pid, signal.SIGCONT)
    refused = sum(1 for _, status, _, _ in hits if status != 200)
    found.figures |= {"outage_webhooks": len(hits), "outage_p99_ms": p_ms(hits, 99)}
    found.at_most(f"not 200 while the endpoint hangs for {seconds} s", refused, 0)
    found.read(f"While the endpoint hung for {seconds} s, {len(hits):,} webhooks were answered, {refused} not with 200; "
               f"p99 {p_ms(hits, 99):.1f} ms.")
    campaign.say(f"the endpoint hung for {seconds} s: {refused} not answered 200")


def strangers(campaign, found):
    script = campaign.directory / "stranger.lua"
    script.write_text(STRANGER)
    rows = []
    for kind in ("files", "endpoint"):
        rows.append({"kind": kind, **attacked(campaign, kind, script)})
        campaign.say(f"stranger, {KINDS[kind]}: good p99 {rows[-1]['p99_ms']:.1f} ms, "
                     f"{rows[-1]['named']:,} shops named, {rows[-1]['lookups']:,} lookups")
    found.rows["strangers"] = rows
    ours = [row for row in rows if row["kind"] == "endpoint"]
    middle = lambda kind, key: median(row[key] for row in rows if row["kind"] == kind)
    found.figures |= {"named_shops": sum(row["named"] for row in ours),
                      "stranger_grown_mib": middle("endpoint", "grown_mib")}
    found.at_least("shops named by strangers", sum(row["named"] for row in ours), campaign.scale(NAMED, 1000))
    found.at_most("good p99 ÷ that with files, both with strangers",
                  middle("endpoint", "p99_ms") / middle("files", "p99_ms"), 1.2)
    found.at_most("strangers' lookups ÷ their bound",
                  max(row["lookups"] / row["lookups_max"] for row in ours), 1)
    found.at_most("memory of the receiver meanwhile", middle("endpoint", "grown_mib"), 16, "MiB")
    found.at_most("good ones not answered 200", sum(row["not_200"] for row in rows), 0)
    found.read(f"Strangers named {sum(row['named'] for row in ours):,} shops; the receiver looked "
               f"{sum(row['lookups'] for row in ours):,} of them up and grew by {middle('endpoint', 'grown_mib'):.1f} MiB.")


def attacked(campaign, kind, script):
    """Good webhooks beside a stranger's. All good shops are known before."""
    seconds = campaign.scale(130, 4)
    with started(campaign, kind, LOOKUPS_A_SECOND) as (child, port, _, _):
        campaign.pace(port, GOOD_RATE, 6 * TTL, GOOD_SHOPS)
        memory = machine.resident_bytes(child.pid)
        line = ["wrk", "-t1", f"-c{STRANGERS}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}"]
        begun = time.monotonic()
        stranger = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:
            _, hits = campaign.pace(port, GOOD_RATE, seconds, GOOD_SHOPS)
        finally:
            out = stranger.communicate(timeout=60)[0]
        took = time.monotonic() - begun
        unknown = sum(servers.counter(child.admin, "spillway_secret_lookups_total", f'"{outcome}"')
                      for outcome in ("unknown", "failed"))
        grown = machine.resident_bytes(child.pid) - memory
    named = next(int(line.split()[0]) for line in out.splitlines() if " requests in " in line)
    return {"p50_ms": p_ms(hits, 50), "p99_ms": p_ms(hits, 99), "named": named,
            "lookups": unknown, "lookups_max": LOOKUPS_A_SECOND * (took + 10),
            "grown_mib": grown / 2**20, "not_200": sum(1 for _, status, _, _ in hits if status != 200)}


def senders(campaign, found):
    rows = []
    requests = campaign.requests(shops=SHOPS)
    for connections in campaign.scale(SENDERS, [10]):
        for number in range(campaign.scale(4, 1)):
            rows += in_turn(campaign, connections, requests, number)
        campaign.say(f"{connections} senders: {ratio(rows, connections):.3f} × the rate with files")
    found.rows["senders"] = rows
    for connections in campaign.scale(SENDERS, [10]):
        for kind in ASKED:
            found.figures[f"{kind}_per_second_{connections}"] = middle_rate(rows, connections, kind)
        found.at_least(f"rate ÷ that with files, several shops in a request, {connections} senders",
                       ratio(rows, connections), 0.97)
    found.at_least("lookups ÷ the least possible, senders", lookups_of(rows, min), 0.95)
    found.figures["senders_times_least_most"] = lookups_of(rows, max)
    found.at_most("senders not answered 200", sum(row["not_200"] for row in rows), 0)
    found.bars("rate", "Signed webhooks answered by number of senders", "webhooks per second", {
        f"{connections} senders": {KINDS[kind]: middle_rate(rows, connections, kind) for kind in ASKED}
        for connections in campaign.scale(SENDERS, [10])},
        "medians; Redis without an AOF; the load generator shares the cores")


def in_turn(campaign, connections, requests, number):
    """Loads a receiver of each kind in turn, for `SLICE` at a time, while the other one, its Redis, its endpoint and its
    load are stopped: over such a time, both have the same machine. A stop is shorter than the time by which a lookup
    is early, so that no shop's secrets end in it. Returns a row for each kind and block of slices."""
    rows, blocks, turns = [], campaign.scale(3, 1), campaign.scale(60, 4)
    with ExitStack() as stack:
        # Of two seconds of the clock, one is of load: in it, as many lookups are due as with `TTL` otherwise. A rewrite
        # of Redis' AOF would go on while Redis is stopped.
        systems = {kind: System(*stack.enter_context(started(campaign, kind, ttl=2 * TTL, durability="none")))
                   for kind in ASKED[:: 1 if number % 2 else -1]}
        # Before any shop is known: lookups that wait for these requests would all be made at one moment, and again.
        for system in systems.values():
            age(system.port)
        with ThreadPoolExecutor() as threads:
            # With no shop known, each of a few senders would wait for one lookup after the other.
            warm_up = [threads.submit(campaign.pace, system.port, 1000, 4 * TTL, SHOPS) for system in systems.values()]
            time.sleep(2 * TTL)
            for system in systems.values():
                seconds = 60 + int(4 * blocks * turns * len(ASKED) * SLICE)
                system.load = stack.enter_context(
                    wrk.running(system.port, connections, seconds, campaign.wrk_threads, requests))
                stack.callback(system.go_on)
            for thread in warm_up:
                thread.result()
        for system in systems.values():
            system.stop()
        # The first block lets lookups get used to the stops.
        for block in range(blocks + 1):
            before = {kind: look_stopped(system) for kind, system in systems.items()}
            took = dict.fromkeys(ASKED, 0)
            for turn in range(turns):
                for kind in ASKED[:: 1 if (turn + block) % 2 else -1]:
                    took[kind] += systems[kind].run(SLICE)
            for kind, system in systems.items():
                after = look_stopped(system)
                grown = {key: after[key] - before[kind][key] for key in after}
                if not grown["accepted"]:
                    raise Failed(f"{KINDS[kind]}, {connections} senders: no webhook was answered 200")
                row = {"per_second": grown["accepted"] / took[kind], "not_200": grown["refused"],
                       "lookups_per_second": grown["lookups"] / took[kind],
                       **{f"{name}_cpu_us": grown[name] / grown["accepted"] * 1e6 for name in system.processes()}}
                rows.append({"connections": connections, "round": number, "block": block, "kind": kind, **row})
    return [row for row in rows if row["block"] > 0]


class System:
    """A receiver, its Redis, its endpoint and its load, which can be stopped together."""

    def __init__(self, child, port, redis, endpoint):
        self.child, self.port, self.redis, self.endpoint = child, port, redis, endpoint
        self.load = None

    def processes(self):
        return {"server": self.child.pid, "redis": self.redis.child.pid, "endpoint": self.endpoint.pid}

    def stop(self):
        for pid in (self.load.pid, *self.processes().values()):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in (*self.processes().values(), self.load.pid):
            os.kill(pid, signal.SIGCONT)

    def run(self, seconds):
        """Lets it go on for so long. Returns the seconds that it had."""
        began = time.monotonic()
        self.go_on()
        time.sleep(seconds)
        self.stop()
        return time.monotonic() - began


def look_stopped(system):
    """Counts of a system whose load stays stopped meanwhile."""
    for pid in system.processes().values():
        os.kill(pid, signal.SIGCONT)
    try:
        return look(system.child, system.processes())
    finally:
        system.stop()


def age(port):
    """Sends requests whose bodies come long after their heads, in another order: their headers are kept meanwhile, and
    the free memory of a new receiver is in the order of its addresses no more. It takes 0.3 to 1 µs more for each
    webhook from then on. First lookups do the same, those of files never: without it, age would be compared."""
    names = ["Api-Version", "Event-Id", "Hmac-Sha256", "Product-Id", "Shop-Domain", "Topic", "Triggered-At", "Webhook-Id"]
    head = "".join(f"X-Shopify-{name}: nothing\r\n" for name in names)
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {LATE_BYTES}\r\n\r\n".encode()
    for order in range(LATE_ROUNDS):
        with ExitStack() as stack:
            senders = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)) for _ in range(LATE)]
            for sender in senders:
                sender.sendall(head)
            time.sleep(0.2)
            random.Random(order).shuffle(senders)
            for sender in senders:
                sender.sendall(bytes(LATE_BYTES))
            if any(b" 401 " not in sender.recv(4096) for sender in senders):
                raise Failed("a request whose body came late was not answered 401")


def look(child, processes):
    received = lambda outcome: servers.counter(child.admin, "spillway_received_total", f'"{outcome}"')
    return {"accepted": received("accepted"), "lookups": lookups(child),
            "refused": sum(received(outcome) for outcome in REFUSED),
            **{name: machine.cpu_seconds(pid) for name, pid in processes.items()}}


def middle_rate(rows, connections, kind):
    return median(row["per_second"] for row in rows
                  if row["connections"] == connections and row["kind"] == kind)


def ratio(rows, connections):
    """Median over rounds of the median ratio of their blocks: rounds differ, since each has new processes."""
    rates = {(row["round"], row["block"], row["kind"]): row["per_second"]
             for row in rows if row["connections"] == connections}
    of_rounds = {}
    for (number, block, kind), rate in rates.items():
        if kind == "together":
            of_rounds.setdefault(number, []).append(rate / rates[number, block, "files"])
    return median(median(ratios) for ratios in of_rounds.values())


def lookups_of(rows, choose):
    """Lookups in a second of load in all blocks of a round, by the least with which every shop's secrets are known all the
    time. Shops are looked up in waves, because the warm-up named them within seconds: a block has one wave or two."""
    rounds = {}
    for row in rows:
        if row["kind"] == "together":
            rounds.setdefault((row["connections"], row["round"]), []).append(row["lookups_per_second"])
    return choose(sum(blocks) / len(blocks) for blocks in rounds.values()) * TTL / SHOPS
