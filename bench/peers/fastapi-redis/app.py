"""FastAPI and Redis: check the signature, XADD, answer."""

import base64
import hashlib
import hmac
import json
import os

from fastapi import FastAPI, Request, Response
from redis.asyncio import Redis

SECRET = os.environ["WEBHOOK_SECRET"].encode()
redis = Redis(unix_socket_path=os.environ["REDIS_SOCKET"], max_connections=int(os.environ["CONNECTIONS"]) + 10)
app = FastAPI()


@app.post("/{path:path}")
async def receive(request: Request):
    body = await request.body()
    wanted = base64.b64encode(hmac.digest(SECRET, body, hashlib.sha256))
    given = request.headers.get("x-shopify-hmac-sha256", "").encode()
    if not hmac.compare_digest(wanted, given):
        return Response(status_code=401)
    await redis.xadd("webhooks", {"headers": json.dumps(dict(request.headers)), "body": body})
    return Response(status_code=200)
