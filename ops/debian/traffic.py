#!/usr/bin/env python3
"""Sender and backend of tests of packages and images: sends webhooks, counts deliveries. Standard library
only.

    traffic.py backend PORT [ADDRESS]        answers every POST with 200; GET /count returns how many
                                             different webhooks arrived, GET /ids Shopify's ids of them
    traffic.py send URL SECRET COUNT         sends COUNT signed webhooks, one after the other
    traffic.py load URL SECRET CONNECTIONS   sends on keep-alive connections until SIGTERM
    traffic.py ledger URL SECRET RATE BACKEND
                                             sends RATE webhooks a second until SIGTERM, each again until
                                             it is answered 200, as Shopify does; then waits until the
                                             backend (its URL) has every one

`send` and `load` print `sent S failed F slowest M ms`, and the first failures. They retry nothing: a
connection that is refused or cut, and any answer except 200, is a failure. After an answer with
`Connection: close` they connect again, as any client does.
"""

import base64
import hashlib
import hmac
import http.client
import http.server
import queue
import signal
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from datetime import datetime, timezone


class Sender:
    def __init__(self, url, secret):
        self.address = urllib.parse.urlsplit(url)
        self.secret = secret.encode()
        self.connection = None
        self.sent = 0
        self.slowest = 0.0
        self.failures = []

    def send(self, webhook=None):
        """Sends a webhook, a new one if none is given. True if it was answered 200."""
        webhook = webhook or uuid.uuid4()
        body = b'{"id":%d}' % (webhook.int % 10**12)
        digest = hmac.new(self.secret, body, hashlib.sha256).digest()
        headers = {
            "Content-Type": "application/json",
            "X-Shopify-Topic": "products/update",
            "X-Shopify-Shop-Domain": "package.myshopify.com",
            "X-Shopify-Webhook-Id": str(webhook),
            "X-Shopify-Triggered-At": datetime.now(timezone.utc).isoformat(),
            "X-Shopify-Hmac-Sha256": base64.b64encode(digest).decode(),
        }
        began = time.monotonic()
        self.sent += 1
        failures = len(self.failures)
        try:
            if self.connection is None:
                host, port = self.address.hostname, self.address.port
                # Shopify gives up after 5 s.
                self.connection = http.client.HTTPConnection(host, port, timeout=5)
            self.connection.request("POST", self.address.path or "/", body, headers)
            answer = self.connection.getresponse()
            answer.read()
            if answer.status != 200:
                self.failures.append(f"status {answer.status}")
            if answer.will_close:
                self.connection.close()
                self.connection = None
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
            self.connection = None
        self.slowest = max(self.slowest, time.monotonic() - began)
        return len(self.failures) == failures


def report(senders):
    failures = [failure for sender in senders for failure in sender.failures]
    slowest = max(sender.slowest for sender in senders)
    sent = sum(sender.sent for sender in senders)
    print(f"sent {sent} failed {len(failures)} slowest {slowest * 1000:.0f} ms", *failures[:3])
    sys.exit(1 if failures else 0)


def load(url, secret, connections):
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    senders = [Sender(url, secret) for _ in range(connections)]

    def run(number, sender):
        # Three of four connections are busy; the fourth is used every few seconds.
        pause = 0.01 if number % 4 else 3.0
        while not over.is_set():
            sender.send()
            over.wait(pause)

    threads = [threading.Thread(target=run, args=one) for one in enumerate(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report(senders)


def ledger(url, secret, rate, backend):
    # Not an Event: one that is set in a handler, while this thread waits for it, may hang.
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    waiting = queue.Queue()
    stored = set()
    senders = [Sender(url, secret) for _ in range(32)]

    def run(sender):
        while True:
            webhook = waiting.get()
            if sender.send(webhook):
                stored.add(str(webhook))
            else:
                time.sleep(0.5)
                waiting.put(webhook)
            waiting.task_done()

    for sender in senders:
        threading.Thread(target=run, args=[sender], daemon=True).start()
    began, count = time.monotonic(), 0
    while not over:
        count += 1
        waiting.put(uuid.uuid4())
        time.sleep(max(0.0, began + count / rate - time.monotonic()))
    seconds = time.monotonic() - began
    missing = until_delivered(count, stored, backend)
    again = sum(len(sender.failures) for sender in senders)
    slowest = max(sender.slowest for sender in senders)
    print(
        f"{count} webhooks in {seconds:.0f} s, {len(stored)} answered 200, {again} sent again,",
        f"{len(missing)} not delivered, slowest answer {slowest * 1000:.0f} ms",
    )
    sys.exit(1 if missing or len(stored) < count else 0)


def until_delivered(count, stored, backend, seconds=120):
    """Waits until all are answered 200 and delivered, and returns those that are stored and are not."""
    end = time.monotonic() + seconds
    while True:
        with urllib.request.urlopen(f"{backend}/ids", timeout=5) as answer:
            delivered = set(answer.read().decode().split())
        missing = stored - delivered
        if (len(stored) == count and not missing) or time.monotonic() > end:
            return missing
        time.sleep(0.5)


def backend(port, address):
    seen, ids = set(), set()

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.add(self.headers["Spillway-Id"])
            ids.add(self.headers["X-Shopify-Webhook-Id"])
            self.answer(b"")

        def do_GET(self):
            text = "\n".join(ids.copy()) if self.path == "/ids" else str(len(seen))
            self.answer(f"{text}\n".encode())

        def answer(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128

    Server((address, port), Answer).serve_forever()


def main():
    match sys.argv[1:]:
        case ["backend", port]:
            backend(int(port), "127.0.0.1")
        case ["backend", port, address]:
            backend(int(port), address)
        case ["send", url, secret, count]:
            sender = Sender(url, secret)
            for _ in range(int(count)):
                sender.send()
            report([sender])
        case ["load", url, secret, connections]:
            load(url, secret, int(connections))
        case ["ledger", url, secret, rate, backend_url]:
            ledger(url, secret, float(rate), backend_url)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
