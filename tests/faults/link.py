"""A link of TCP that can be slow and lose connections: `python link.py LISTEN PORT TO PORT FILE`.

FILE holds two numbers: seconds by which each piece is late, and how likely a piece breaks its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path


def quality() -> tuple[float, float]:
    """What the file says now."""
    with contextlib.suppress(OSError, ValueError):
        late, broken = Path(sys.argv[5]).read_text().split()
        return float(late), float(broken)
    return 0.0, 0.0


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on what comes."""
    dice = random.Random()
    try:
        while piece := await reader.read(1 << 16):
            late, broken = quality()
            if late:
                await asyncio.sleep(late)
            if dice.random() < broken:
                writer.transport.abort()
                return
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (ConnectionError, OSError, RuntimeError):
        writer.transport.abort()


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect through."""
    try:
        there, onward = await asyncio.open_connection(sys.argv[3], int(sys.argv[4]))
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(pump(reader, onward), pump(there, writer))
    for each in (onward, writer):
        each.close()


async def main() -> None:
    """Until killed."""
    async with await asyncio.start_server(connected, sys.argv[1], int(sys.argv[2])) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
