"""Proxy between the receiver and Redis on unix sockets that delays each reply, as a slow disk would.
Run as a program: proxy.py LISTEN TARGET DELAY_MS, until SIGTERM."""

import asyncio
import signal
import subprocess
import sys
import tempfile
import shutil
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 1 << 18


async def forward(reader, writer, delay):
    """Passes data on, each piece `delay` after it arrived, in order. The other side bounds the queue
    of pieces, because a client has at most one pack under way."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue(maxsize=64)

    async def hand_on():
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0, due - loop.time()))
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    async def take():
        while True:
            piece = await reader.read(CHUNK_BYTES)
            await pieces.put((loop.time() + delay, piece))
            if not piece:
                return

    try:
        await asyncio.gather(hand_on(), take())
    except ConnectionError:
        writer.close()


async def serve(listen, target, delay):
    async def connected(reader, writer):
        there, back = await asyncio.open_unix_connection(target)
        await asyncio.gather(forward(reader, back, 0), forward(there, writer, delay))

    server = await asyncio.start_unix_server(connected, listen)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    server.close()


@contextmanager
def running(server, delay_ms, directory):
    """Runs a delaying proxy for a Redis. A receiver uses it like the Redis itself."""
    from . import servers

    sockets = tempfile.mkdtemp(prefix="spillway-bench-")
    listen = f"{sockets}/proxy.sock"
    line = [sys.executable, __file__, listen, server.unix_socket, f"{delay_ms:.3f}"]
    try:
        with servers.process("proxy", line, {}, directory) as child:
            servers.wait_for("proxy", child, Path(listen).exists)
            yield servers.Redis(server.child, listen)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3))
