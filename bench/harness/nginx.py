"""An nginx that passes every request on: to a backend, for comparison, or to several cells by the hash of the shop."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from . import machine, servers

# Bodies stay in memory, connections to the backend are kept, and nothing is logged for a request.
CONFIGURATION = """
daemon off;
pid nginx.pid;
error_log stderr warn;
{user}
worker_processes auto;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    client_max_body_size 16m;
    client_body_buffer_size 256k;
    keepalive_requests 1000000000;
    {upstream}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://{name};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream off;
        }}
    }}
}}
"""

BACKEND = """upstream backend {{
        server 127.0.0.1:{backend};
        keepalive 256;
        keepalive_requests 1000000000;
    }}"""


@contextmanager
def proxy(backend, directory):
    """Runs nginx between a port and a backend. Yields its process and port."""
    with front(BACKEND.format(backend=backend), "backend", directory) as running:
        yield running


@contextmanager
def by_shop(ports, directory):
    """Runs nginx in front of up to three cells with ops/nginx/cells.conf, except for addresses. Yields its process and
    port."""
    lines, number = [], 0
    for line in (servers.ROOT / "ops" / "nginx" / "cells.conf").read_text().splitlines():
        if line.strip().startswith("server 10.0.0."):
            number += 1
            if number > len(ports):
                continue
            line = f"server 127.0.0.1:{ports[number - 1]} max_fails=0;"
        lines.append(line)
    if number < len(ports):
        raise servers.Failed(f"ops/nginx/cells.conf has {number} cells, and {len(ports)} are asked for")
    with front("\n".join(lines), "spillway", directory) as running:
        yield running


@contextmanager
def front(upstream, name, directory):
    """Runs nginx in front of an upstream. Yields its process and port."""
    port = machine.free_port()
    files = Path(tempfile.mkdtemp(prefix="nginx-", dir=directory))
    # Workers of another user could not enter the directory.
    user = "user root;" if os.geteuid() == 0 else ""
    text = CONFIGURATION.format(user=user, upstream=upstream, name=name, port=port)
    (files / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(files), "-c", "nginx.conf", "-e", "stderr"]
    with servers.process("nginx", command, {}, directory) as child:
        servers.wait_for("nginx", child, lambda: servers.listens(port))
        yield child, port


def workers(child):
    """Returns the process ids of the workers, which do all the work."""
    return [int(pid) for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]
