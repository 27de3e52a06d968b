"""Both ends of a stream of mutations, apart from the wire."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from gesso.canvas.v1 import canvas_pb2 as pb

from gateway import mutations
from gateway.mutations import Stream
from servicekit import server
from servicekit.identity import Behalf
from servicekit.telemetry import Metrics
from services.canvas import streams
from services.canvas.batch import Applied
from services.canvas.domain.mutation import Receipt
from services.canvas.rpc import response_from_applied

SOMEBODY = Behalf(account_id="us_a")


def request_of(name: str, *, size_bytes: int = 0) -> pb.ApplyOperationsRequest:
    node = pb.CreateNode(node=b"x" * size_bytes)
    return pb.ApplyOperationsRequest(
        canvas_id="c", mutation_id=name, operations=[pb.Operation(create_node=node)]
    )


def names_of(message: pb.ApplyMutationsRequest) -> list[str]:
    return [mutation.request.mutation_id for mutation in message.mutations]


async def test_what_is_asked_while_a_message_is_sent_shares_the_next() -> None:
    """CV27"""
    stream = Stream()
    requests = stream.requests()

    stream.ask(request_of("first"), SOMEBODY, 1)
    alone = await anext(requests)
    for name in ("second", "third"):
        stream.ask(request_of(name), SOMEBODY, 1)
    together = await anext(requests)

    assert (names_of(alone), names_of(together)) == (["first"], ["second", "third"])


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    """CV27"""
    stream = Stream()
    left = stream.ask(request_of("left"), SOMEBODY, 1)
    stream.ask(request_of("stays"), SOMEBODY, 1)
    assert left is not None
    left.cancel()

    assert names_of(await anext(stream.requests())) == ["stays"]


async def test_a_stream_has_room_for_so_many_bytes_and_gets_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CV27"""
    monkeypatch.setattr(mutations, "MAX_BYTES_IN_FLIGHT", 3_000)
    stream = Stream()
    first = stream.ask(request_of("a", size_bytes=2_000), SOMEBODY, 1)
    assert first is not None
    assert stream.ask(request_of("b", size_bytes=2_000), SOMEBODY, 1) is None

    answer = pb.MutationAnswer(number=1, applied=pb.ApplyOperationsResponse(revision=7))
    stream.receive(pb.ApplyMutationsResponse(answers=[answer]))

    assert (await first).revision == 7
    assert stream.ask(request_of("b", size_bytes=2_000), SOMEBODY, 1) is not None


async def test_answers_that_come_out_of_order_go_to_who_asked() -> None:
    """CV26, CV27"""
    stream = Stream()
    requests = stream.requests()
    first = stream.ask(request_of("a"), Behalf(account_id="us_a"), 1)
    second = stream.ask(request_of("b"), Behalf(account_id="us_b"), 1)
    assert first is not None
    assert second is not None
    sent = await anext(requests)
    assert [mutation.number for mutation in sent.mutations] == [1, 2]

    stream.receive(
        pb.ApplyMutationsResponse(
            answers=[
                pb.MutationAnswer(
                    number=mutation.number,
                    applied=pb.ApplyOperationsResponse(
                        receipt=f"{mutation.account_id} {mutation.request.mutation_id}".encode()
                    ),
                )
                for mutation in reversed(sent.mutations)
            ]
        )
    )

    assert (await first).receipt == b"us_a a"
    assert (await second).receipt == b"us_b b"


async def test_a_message_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """CV27"""
    monkeypatch.setattr(mutations, "MAX_MESSAGE_BYTES", 3_000)
    stream = Stream()
    requests = stream.requests()
    for name in "abc":
        stream.ask(request_of(name, size_bytes=2_000), SOMEBODY, 1)

    assert names_of(await anext(requests)) == ["a", "b"]
    assert names_of(await anext(requests)) == ["c"]


async def test_what_is_lost_is_told_to_all_who_wait_and_no_more_is_taken() -> None:
    """CV27"""
    stream = Stream()
    answer = stream.ask(request_of("a"), SOMEBODY, 1)
    assert answer is not None

    stream.lose()

    with pytest.raises(mutations.StreamLost):
        await answer
    assert stream.ask(request_of("b"), SOMEBODY, 1) is None
    assert [request async for request in stream.requests()] == []


async def test_no_more_is_begun_for_a_reader_that_takes_no_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CV26"""
    monkeypatch.setattr(streams, "MAX_IN_FLIGHT", 3)
    begun: list[int] = []

    def begin(mutation: pb.Mutation) -> asyncio.Future[Applied]:
        begun.append(mutation.number)
        done: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        done.set_result(Applied(Receipt(b"", mutation.number, b"{}"), replayed=False))
        return done

    async def requests() -> AsyncIterator[pb.ApplyMutationsRequest]:
        for number in range(1, 10):
            yield pb.ApplyMutationsRequest(mutations=[pb.Mutation(number=number)])

    endings = server.endings("canvas", Metrics())
    stream = streams.MutationStream(begin, response_from_applied, endings, asyncio.Event())
    responses = stream.responses(requests())
    first = await anext(responses)
    # So often that all would have been begun, were there room.
    for _ in range(50):
        await asyncio.sleep(0)
    begun_meanwhile = list(begun)

    numbers = [answer.number for answer in first.answers]
    async for response in responses:
        numbers += [answer.number for answer in response.answers]

    assert begun_meanwhile == [1, 2, 3]
    assert numbers == list(range(1, 10))


async def test_a_stream_that_is_left_has_nothing_more_begun() -> None:
    """CV26"""
    waits: list[asyncio.Future[Applied]] = []

    def begin(_mutation: pb.Mutation) -> asyncio.Future[Applied]:
        waits.append(asyncio.get_running_loop().create_future())
        return waits[-1]

    async def requests() -> AsyncIterator[pb.ApplyMutationsRequest]:
        yield pb.ApplyMutationsRequest(mutations=[pb.Mutation(number=1)])
        await asyncio.Event().wait()

    endings = server.endings("canvas", Metrics())
    stream = streams.MutationStream(begin, response_from_applied, endings, asyncio.Event())
    responses = stream.responses(requests())
    reading = asyncio.ensure_future(anext(responses))
    while not waits:
        await asyncio.sleep(0)

    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert waits[0].cancelled()


async def test_a_fault_of_one_mutation_is_told_as_internal_and_no_other_is_touched() -> None:
    """CV26"""

    def begin(mutation: pb.Mutation) -> asyncio.Future[Applied]:
        if mutation.number == 1:
            raise RuntimeError("a secret")
        done: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        done.set_result(Applied(Receipt(b"", 5, b"{}"), replayed=False))
        return done

    async def requests() -> AsyncIterator[pb.ApplyMutationsRequest]:
        both = [pb.Mutation(number=1, request_id="r1"), pb.Mutation(number=2)]
        yield pb.ApplyMutationsRequest(mutations=both)

    endings = server.endings("canvas", Metrics())
    stream = streams.MutationStream(begin, response_from_applied, endings, asyncio.Event())

    answers = [
        answer async for response in stream.responses(requests()) for answer in response.answers
    ]

    told = {answer.number: answer for answer in answers}
    assert b"internal error" in told[1].status
    assert b"secret" not in told[1].status
    assert told[2].applied.revision == 5
