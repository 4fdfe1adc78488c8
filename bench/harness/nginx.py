"""An nginx that passes every request on to a backend and stores nothing, for comparison."""

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
    upstream backend {{
        server 127.0.0.1:{backend};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


@contextmanager
def proxy(backend, directory):
    """Runs nginx between a port and a backend. Yields its process and port."""
    port = machine.free_port()
    files = Path(tempfile.mkdtemp(prefix="nginx-", dir=directory))
    # Workers of another user could not enter the directory.
    user = "user root;" if os.geteuid() == 0 else ""
    (files / "nginx.conf").write_text(CONFIGURATION.format(user=user, backend=backend, port=port))
    command = ["nginx", "-p", str(files), "-c", "nginx.conf", "-e", "stderr"]
    with servers.process("nginx", command, {}, directory) as child:
        servers.wait_for("nginx", child, lambda: servers.listens(port))
        yield child, port
