"""A server of models as a process of its own: it says what a message asks it to say (`SAY:TIMES:TEXT:YAS`), or `fine`;
after so many seconds where one says so (`WAIT:SECONDS:YAS`).

    python upstream_child.py [ADDRESS] [PORT]
    python upstream_child.py FOLDER socket

Prints its port, or its process id if it listens on the socket `PID.sock` of a folder. It reads no more of a body than
it must, so that long prompts cost it little.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

_SAY = re.compile(rb"SAY:(\d+):((?:[^\"\\]|\\.)*?):YAS")
_WAIT = re.compile(rb"WAIT:(\d+):YAS")


def answer(body: bytes) -> bytes:
    """Return the answer to a chat completion, streamed where it was asked for."""
    said = _SAY.findall(body)
    text = json.loads(b'"' + said[-1][1] + b'"') * int(said[-1][0]) if said else "fine"
    usage = {"prompt_tokens": 5, "completion_tokens": 1 + len(text) // 4, "total_tokens": 6 + len(text) // 4}
    about = {"id": "c", "created": 0, "model": "q"}
    ends = (body[:400] + body[-4000:]).replace(b" ", b"")
    if b'"stream":true' not in ends:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        whole = json.dumps({**about, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole) + whole
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": text[at : at + 2000]}}]}
              for at in range(0, len(text), 2000)]  # fmt: skip
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    lines = [b"data: " + json.dumps({**about, "object": "chat.completion.chunk", **each}).encode() + b"\n\n"
             for each in events]  # fmt: skip
    whole = b"".join([*lines, b"data: [DONE]\n\n"])
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(whole) + whole


MODELS = json.dumps({"object": "list", "data": [{"id": "q", "object": "model"}]}).encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.I)
            body = await reader.readexactly(int(length[1])) if length else b""
            if head.startswith(b"POST") and b"completions" in head.partition(b"\r\n")[0]:
                if waits := _WAIT.search(body):
                    await asyncio.sleep(int(waits[1]))
                writer.write(answer(body))
            elif b"/models" in head.partition(b"\r\n")[0]:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                             % len(MODELS) + MODELS)  # fmt: skip
            elif b"/health" in head.partition(b"\r\n")[0]:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    address, port = [*sys.argv[1:], "127.0.0.1", "0"][:2] if len(sys.argv) < 3 else sys.argv[1:3]
    if port == "socket":  # the address is a folder
        server = await asyncio.start_unix_server(serve, f"{address}/{os.getpid()}.sock", limit=64 << 20)
    else:
        server = await asyncio.start_server(serve, address, int(port), limit=64 << 20)
    sys.stdout.write(f"{os.getpid() if port == 'socket' else server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
