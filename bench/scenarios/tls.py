"""The same webhooks over plain HTTP and over TLS 1.3 on connections that are kept, in turn at one receiver, each first in
every other round; then full handshakes, one connection each. The certificate is an ECDSA one on P-256. wrk encrypts on the same
cores, so the rates differ more than they would with senders elsewhere; CPU per webhook is the receiver's and Redis'."""

import shutil
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from harness import load, machine, servers
from harness.campaign import Findings
from harness.servers import Failed

CONNECTIONS = 64
ROUNDS = 6
NAME = "bench.example"
KINDS = {"http": "plain HTTP", "https": "TLS 1.3"}
# Clients that shake hands, on threads of this process.
CLIENTS = 4
KEYS = [("per_second", "webhooks/s", 0), ("cpu_us", "CPU µs", 1), ("server_cpu_us", "of it receiver", 1),
        ("p50_ms", "p50 ms", 2), ("p99_ms", "p99 ms", 2)]


def run(campaign):
    found = Findings()
    certificate, key = certify(campaign.directory)
    rows, handshakes = [], []
    for number in range(campaign.scale(ROUNDS, 1)):
        kinds = list(KINDS)[::1 if number % 2 == 0 else -1]
        measured, shaken, spoken = one_round(campaign, kinds, certificate, key)
        rows += [{"round": number, **row} for row in measured]
        handshakes.append({"round": number, **shaken})
        campaign.say(f"round {number + 1}: " + ", ".join(
            f"{KINDS[row['kind']]} {row['cpu_us']:.1f} µs" for row in measured)
            + f", a handshake {shaken['cpu_us']:.0f} µs")
    judge(found, rows, handshakes, spoken)
    return found


def certify(directory):
    """Makes a certificate and its key. Returns both paths."""
    if not shutil.which("openssl"):
        raise Failed("missing: openssl; `apt-get install openssl` brings it")
    certificate, key = directory / "tls.pem", directory / "tls.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}",
                    "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def one_round(campaign, kinds, certificate, key):
    """Runs a receiver. Returns the figures of each kind, those of handshakes, and what TLS speaks."""
    settings, requests = campaign.load(campaign.scale(8, 1)), campaign.requests()
    directory, tls_port = campaign.directory, machine.free_port()
    https = {"LISTEN_TLS": f"127.0.0.1:{tls_port}", "TLS_CERT_FILE": str(certificate), "TLS_KEY_FILE": str(key)}
    measured = []
    with servers.redis("always", directory) as redis, \
            servers.receiver(redis, campaign.secret, directory, **https) as (child, port):
        pids = {"server": child.pid, "redis": redis.child.pid}
        for kind in kinds:
            at = tls_port if kind == "https" else port
            entry = load.measure(at, pids, redis, CONNECTIONS, settings, requests, scheme=kind)
            entry.pop("raw")
            measured.append({"kind": kind, **entry})
        context = ssl.create_default_context(cafile=certificate)
        # It certifies itself, without the extensions of an authority.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        spoken = shake(context, tls_port)
        return measured, shaken(campaign, child, context, tls_port), spoken


def shake(context, port):
    """Shakes hands once. Returns version and suite."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain, \
            context.wrap_socket(plain, server_hostname=NAME) as tls:
        return f"{tls.version()}, {tls.cipher()[0]}"


def shaken(campaign, child, context, port):
    """Shakes hands for some seconds, each time in full. Returns the receiver's CPU for each."""
    seconds = campaign.scale(4, 1)
    done = lambda: servers.counter(child.admin, "spillway_tls_handshakes_total", '"done"')
    count, cpu, until = done(), machine.cpu_seconds(child.pid), time.monotonic() + seconds

    def client(_):
        while time.monotonic() < until:
            shake(context, port)

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    cpu = machine.cpu_seconds(child.pid) - cpu
    count = done() - count
    return {"per_second": count / seconds, "cpu_us": cpu / count * 1e6}


def judge(found, rows, handshakes, spoken):
    of = lambda kind, key: [row[key] for row in sorted(rows, key=lambda row: row["round"]) if row["kind"] == kind]
    ratios = {key: [tls / plain for tls, plain in zip(of("https", key), of("http", key))] for key, _, _ in KEYS}
    handshake = median(row["cpu_us"] for row in handshakes)
    found.figures = {f"{kind}_{key}": median(of(kind, key)) for kind in KINDS for key, _, _ in KEYS}
    found.figures |= {f"ratio_{key}": median(ratios[key]) for key, _, _ in KEYS}
    found.figures |= {"handshake_cpu_us": handshake, "speaks": spoken}
    found.at_most("CPU per webhook ÷ that of plain HTTP, median of the rounds", median(ratios["cpu_us"]), 1.25)
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.read(f"Over {spoken} a webhook of 5.3 KB costs {median(of('https', 'cpu_us')):.1f} µs, "
               f"{median(ratios['cpu_us']):.2f} × plain HTTP; the rate is {median(ratios['per_second']):.2f} × it. "
               f"A full handshake costs the receiver {handshake:.0f} µs, its connection included.")
    found.rows = {"rounds": rows, "handshakes": handshakes}
    found.bars("cpu", "CPU per webhook, plain HTTP and TLS 1.3", "µs",
               {f"{CONNECTIONS} connections": {KINDS[kind]: [
                   ("receiver", median(of(kind, "server_cpu_us"))),
                   ("Redis", median(of(kind, "cpu_us")) - median(of(kind, "server_cpu_us")))] for kind in KINDS}},
               "medians; the load generator shares the cores")
    found.pages["tls"] = page(found, of, ratios, handshakes)


def page(found, of, ratios, handshakes):
    """Returns the page of this scenario."""
    span = lambda values, digits: f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
    row = lambda cells: "| " + " | ".join(cells) + " |"
    lines = ["# HTTPS beside plain HTTP", "", " ".join(__doc__.split()), ""]
    lines += ["`make characterize SCENARIOS=tls`: medians of the rounds (lowest–highest); × is the median of the ratios of each "
              "round.", ""]
    lines += [row(["", *[head for _, head, _ in KEYS]]), row(["---"] * (len(KEYS) + 1))]
    for kind, words in KINDS.items():
        lines.append(row([words, *[span(of(kind, key), digits) for key, _, digits in KEYS]]))
    lines.append(row(["×", *[span(ratios[key], 2) for key, _, _ in KEYS]]))
    lines += ["", *found.reading, "", "![CPU per webhook](tls-cpu.svg)", ""]
    lines += [f"Handshakes: {span([row['per_second'] for row in handshakes], 0)} a second by {CLIENTS} clients, "
              f"{span([row['cpu_us'] for row in handshakes], 0)} µs of the receiver's CPU each.", ""]
    lines += ["; ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.facts().items())]
    return "\n".join(lines) + "\n"
