"""The bench's own gRPC caller."""

import asyncio

import pytest
from gesso.canvas.v1 import canvas_pb2 as pb

from bench.rpc import Caller


async def test_a_call_on_a_connection_that_was_closed_fails_at_once() -> None:
    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        caller = await Caller.at(f"127.0.0.1:{port}", "/gesso.x/Y", ())
        async with asyncio.timeout(5):
            while not caller.is_closed:
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            async with asyncio.timeout(5):
                await caller.call(pb.ListChangesRequest(), pb.ListChangesResponse)
