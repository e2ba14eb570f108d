"""A server of models that can be in trouble: `python upstream.py ADDRESS PORT FILE`.

A conversation with `AGENT:TURNS:MARK:YAS` gets a call of the tool `put` in each turn until it has the results of so
many calls, and then the mark. FILE holds one word: `ok`; `full` (429 to all); `slow` (answers seconds late); `broken`
(ends in the middle of answers).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "apps" / "serve"))

from upstream_child import MODELS, answer

FULL = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: application/json\r\ncontent-length: 33\r\n\r\n"
    b'{"error": {"message": "is full"}}'
)
MODE = Path(sys.argv[3])
_AGENT = re.compile(rb"AGENT:(\d+):([\w-]+):YAS")
_RESULT = re.compile(rb'"role": ?"tool"')
PIECE_BYTES = 400
"""A streamed answer comes in pieces of this size, so that a client can leave in its middle."""


def next_turn(body: bytes) -> bytes:
    """Return a body with what to say in an agent's next turn; any other body as it is."""
    asked = _AGENT.search(body)
    if asked is None:
        return body
    done = len(_RESULT.findall(body))
    call = f'<tool_call>{{\\"name\\": \\"put\\", \\"arguments\\": {{\\"amount\\": {done}}}}}</tool_call>'
    return body + b" SAY:1:%s:YAS" % (call.encode() if done < int(asked[1]) else asked[2])


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.I)
            body = await reader.readexactly(int(length[1])) if length else b""
            if not (head.startswith(b"POST") and b"/chat/completions" in head.partition(b"\r\n")[0]):
                found = b"/models" in head.partition(b"\r\n")[0]
                what = (b"200 OK", MODELS) if found else (b"404 Not Found", b"{}")
                writer.write(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                             % (what[0], len(what[1]), what[1]))  # fmt: skip
                continue
            mode = MODE.read_text()  # noqa: ASYNC240  (one word of a file in memory)
            await asyncio.sleep(2.0 if mode == "slow" else 0.01)
            whole = FULL if mode == "full" else answer(next_turn(body))
            if mode == "broken":
                writer.write(whole[: len(whole) * 2 // 3])
                return
            for start in range(0, len(whole), PIECE_BYTES):
                writer.write(whole[start : start + PIECE_BYTES])
                await writer.drain()
                await asyncio.sleep(0.005)
    writer.close()


async def main() -> None:
    """Serve until killed."""
    async with await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]), limit=64 << 20) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
