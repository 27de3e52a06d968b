"""Mutations over a stream to the real service, from the gateway's end and from a bare one."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub
from google.rpc.status_pb2 import Status

from gateway import mutations
from gateway.mutations import Mutations, mutating
from gateway.operations import operations_from_json
from servicekit.client import Client
from servicekit.errors import Conflict, Failure, Invalid, Unauthenticated, Unavailable
from servicekit.identity import Behalf, Context
from servicekit.status import error_from_message
from services.canvas import server, streams
from services.canvas.batch import Applied
from services.canvas.domain.mutation import Mutation
from services.canvas.rpc import CanvasRpc
from services.canvas.service import CanvasService
from tests.support.canvas import Window, create_canvas, create_node, node, patch_node
from tests.support.proxy import cutting_line, cutting_proxy
from tests.support.services import canvas_service, canvas_settings, connected, new_account
from tests.support.waiting import until

LOCK = "SELECT FROM canvas.canvas WHERE account_id = $1 AND canvas_id = $2 FOR UPDATE"


def request_of(
    *operations: dict[str, object], canvas_id: str = "c", mutation_id: str = ""
) -> pb.ApplyOperationsRequest:
    return pb.ApplyOperationsRequest(
        canvas_id=canvas_id,
        mutation_id=mutation_id or secrets.token_hex(8),
        operations=operations_from_json(list(operations)),
    )


class Line:
    """A bare stream of mutations."""

    def __init__(self) -> None:
        self.responses: AsyncIterator[pb.ApplyMutationsResponse] = _none()
        self._requests: asyncio.Queue[pb.ApplyMutationsRequest | None] = asyncio.Queue()
        self._came: dict[int, pb.MutationAnswer] = {}
        self._number = 0

    def send(self, behalf: Behalf, *requests: pb.ApplyOperationsRequest) -> list[int]:
        """Sends requests in one message; their numbers."""
        mutations = [
            pb.Mutation(
                number=self._number + each, account_id=behalf.account_id or "", request=request
            )
            for each, request in enumerate(requests, 1)
        ]
        self._number += len(requests)
        self._requests.put_nowait(pb.ApplyMutationsRequest(mutations=mutations))
        return [mutation.number for mutation in mutations]

    def end(self) -> None:
        self._requests.put_nowait(None)

    async def requests(self) -> AsyncIterator[pb.ApplyMutationsRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def answer(self, number: int) -> pb.ApplyOperationsResponse:
        """The answer to a request, which may come after others. Raises what it was refused for."""
        while number not in self._came:
            response = await anext(self.responses)
            self._came.update((answer.number, answer) for answer in response.answers)
        answer = self._came[number]
        if answer.HasField("applied"):
            return answer.applied
        raise error_from_message(Status.FromString(answer.status))


async def _none() -> AsyncIterator[pb.ApplyMutationsResponse]:
    return
    yield


@asynccontextmanager
async def line_to(canvas: Client) -> AsyncIterator[Line]:
    line = Line()
    stub = CanvasServiceStub(canvas.channel)
    async with canvas.exchange(stub.ApplyMutations, line.requests(), Behalf()) as responses:
        line.responses = responses
        async with asyncio.timeout(20):
            yield line


@asynccontextmanager
async def locked(database_url: str, window: Window) -> AsyncIterator[None]:
    """Somebody else has the canvas inside the block."""
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute(LOCK, window.behalf.account_id, window.canvas_id)
            yield
    finally:
        await connection.close()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request came to the service: by a "stream" or a "call"."""
    came: list[str] = []
    apply, begin = CanvasService.apply, CanvasService.begin

    async def called(self: CanvasService, account_id: str, mutation: Mutation) -> Applied:
        came.append("call")
        return await apply(self, account_id, mutation)

    def streamed(
        self: CanvasService, account_id: str, mutation: Mutation
    ) -> asyncio.Future[Applied]:
        came.append("stream")
        return begin(self, account_id, mutation)

    monkeypatch.setattr(CanvasService, "apply", called)
    monkeypatch.setattr(CanvasService, "begin", streamed)
    return came


def serving_tasks() -> list[asyncio.Task[object]]:
    """What runs for streams at the service's end."""
    return [task for task in asyncio.all_tasks() if "MutationStream" in repr(task)]


@asynccontextmanager
async def streaming(canvas: Client, ways: list[str]) -> AsyncIterator[Mutations]:
    """The gateway's end with one stream, which is used already; nothing is in `ways`."""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with mutating(canvas, streams=1) as made:
        while ways[-1] != "stream":
            await made.apply(request_of(create_node(node(secrets.token_hex(4)))), window.behalf)
        ways.clear()
        yield made


async def test_a_mutation_is_answered_over_a_stream_as_by_a_call(canvas: Client) -> None:
    """CV10, CV26"""
    window = Window(canvas, new_account())
    async with line_to(canvas) as line:
        made, added = line.send(
            window.behalf,
            request_of(create_canvas()),
            request_of(create_node(node("a")), mutation_id="once"),
        )

        first, second = await line.answer(made), await line.answer(added)
        again = await window.apply(create_node(node("a")), mutation_id="once")

    assert (first.revision, second.revision) == (1, 2)
    assert (again.receipt, again.replayed) == (second.receipt, True)


async def test_each_mutation_of_a_message_acts_for_its_own_account_and_fails_alone(
    canvas: Client,
) -> None:
    """CV13, CV26"""
    window, stranger = Window(canvas, new_account()), new_account()
    await window.apply(create_canvas())
    async with line_to(canvas) as line:
        mine, stale = line.send(
            window.behalf,
            request_of(create_node(node("a", prompt="now"))),
            request_of(patch_node("a", {"metadata.prompt": "x"}, {"metadata.prompt": "then"})),
        )
        (theirs,) = line.send(stranger, request_of(create_node(node("b"))))
        (nobodys,) = line.send(Behalf(), request_of(create_node(node("c"))))
        (malformed,) = line.send(window.behalf, request_of(create_node(node(""))))

        assert (await line.answer(mine)).revision == 2
        with pytest.raises(Conflict) as conflict:
            await line.answer(stale)
        with pytest.raises(Conflict) as gone:
            await line.answer(theirs)
        with pytest.raises(Invalid, match="account"):
            await line.answer(nobodys)
        with pytest.raises(Invalid) as invalid:
            await line.answer(malformed)

    assert conflict.value.machine_word == "canvas_field_conflict"
    assert conflict.value.facts["current_value"] == "now"
    assert gone.value.machine_word == "canvas_object_missing"
    assert invalid.value.machine_word == "invalid_operation"
    assert [found["id"] for found in (await window.read())["nodes"]] == ["a"]


async def test_a_stream_without_an_internal_token_is_refused(canvas: Client) -> None:
    """CV26"""
    stub = CanvasServiceStub(canvas.channel)
    stranger = Client(canvas.channel, caller="tests", tokens=("another",))
    line = Line()

    with pytest.raises(Unauthenticated):
        async with stranger.exchange(stub.ApplyMutations, line.requests(), Behalf()) as responses:
            await anext(responses)


async def test_a_canvas_that_is_held_up_holds_up_no_other_on_its_stream(
    canvas: Client, shared_database: str
) -> None:
    """CV26"""
    slow, quick = Window(canvas, new_account()), Window(canvas, new_account())
    await slow.apply(create_canvas())
    await quick.apply(create_canvas())
    async with line_to(canvas) as line:
        async with locked(shared_database, slow):
            (held,) = line.send(slow.behalf, request_of(create_node(node("a"))))
            (free,) = line.send(quick.behalf, request_of(create_node(node("a"))))

            assert (await line.answer(free)).revision == 2

        assert (await line.answer(held)).revision == 2


async def test_no_more_is_read_while_too_many_are_not_answered(
    canvas: Client, shared_database: str, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CV26"""
    monkeypatch.setattr(streams, "MAX_IN_FLIGHT", 4)
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with line_to(canvas) as line:
        async with locked(shared_database, window):
            numbers = line.send(
                window.behalf, *(request_of(create_node(node(f"n{each}"))) for each in range(20))
            )
            await until(lambda: ways.count("stream") == 4)
            # Whatever the service does meanwhile, it begins no fifth.
            await window.status()
            assert ways.count("stream") == 4

        answers = [await line.answer(number) for number in numbers]

    assert [answer.revision for answer in answers] == list(range(2, 22))


async def test_a_reader_that_takes_no_answers_leaves_nothing_behind(
    canvas: Client, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CV26"""
    monkeypatch.setattr(streams, "MAX_IN_FLIGHT", 100)
    window = Window(canvas, new_account())
    await window.apply(create_canvas(nodes=[node("a", prompt="x" * 4_000)]))
    stale = patch_node("a", {"metadata.prompt": "mine"}, {"metadata.prompt": "then"})
    async with line_to(canvas) as line:
        for _ in range(100):
            line.send(window.behalf, *(request_of(stale) for _ in range(50)))
        # Each refusal has more than 4 KiB: the transport has no room for most of them.
        begun = -1
        while begun < ways.count("stream"):
            begun = ways.count("stream")
            for _ in range(50):
                await window.status()
        assert 100 <= begun < 3_000
        assert serving_tasks()

    await until(lambda: not serving_tasks())


async def test_a_mutation_that_takes_too_long_says_so(canvas: Client, shared_database: str) -> None:
    """CV12, CV26"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with line_to(canvas) as line, locked(shared_database, window):
        late = pb.Mutation(
            number=7,
            account_id=window.behalf.account_id or "",
            timeout_ms=50,
            request=request_of(create_node(node("a"))),
        )
        line._requests.put_nowait(pb.ApplyMutationsRequest(mutations=[late]))

        with pytest.raises(Unavailable):
            await line.answer(7)


async def test_a_stream_ends_with_its_last_answer_once_its_requests_end(canvas: Client) -> None:
    """CV26"""
    async with line_to(canvas) as line:
        (made,) = line.send(new_account(), request_of(create_canvas()))
        line.end()

        assert (await line.answer(made)).revision == 1
        with pytest.raises(StopAsyncIteration):
            await anext(line.responses)


async def test_a_server_that_goes_away_answers_what_it_has_begun(
    shared_database: str, objects_url: str, ways: list[str]
) -> None:
    """CV26"""
    settings = canvas_settings(shared_database, objects_url, drain_seconds=10)
    ready, gone = asyncio.Event(), asyncio.Event()
    ports: list[int] = []

    async def serve() -> None:
        async with server.serving(settings) as port:
            ports.append(port)
            ready.set()
            await gone.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve())
        await ready.wait()
        async with connected(ports[0]) as canvas, line_to(canvas) as line:
            window = Window(canvas, new_account())
            await window.apply(create_canvas())
            async with locked(shared_database, window):
                (begun,) = line.send(window.behalf, request_of(create_node(node("a"))))
                await until(lambda: "stream" in ways)
                gone.set()

            assert (await line.answer(begun)).revision == 2
            with pytest.raises(Unavailable, match="moving"):
                await anext(line.responses)


@pytest.mark.parametrize("answered", [False, True])
async def test_a_stream_that_is_cut_ends_in_exactly_one_application(
    shared_database: str, objects_url: str, ways: list[str], answered: bool
) -> None:
    """CV12, CV27"""
    settings = canvas_settings(shared_database, objects_url)
    async with (
        server.serving(settings) as port,
        cutting_line(port) as (proxy, through),
        connected(through) as canvas,
        streaming(canvas, ways) as made,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        ways.clear()
        proxy.cut_at(b"once", answered=answered, answer=b'"mutationId":"once"')

        applied = await made.apply(
            request_of(create_node(node("a")), mutation_id="once"), window.behalf
        )
        found = await window.read()

    assert proxy.cuts == 1
    assert ways == (["stream", "call"] if answered else ["call"])
    assert (applied.revision, applied.replayed) == (2, answered)
    assert (found["revision"], len(found["nodes"])) == (2, 1)


async def test_what_a_stream_has_no_room_for_goes_by_a_call(
    canvas: Client, shared_database: str, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CV27"""
    monkeypatch.setattr(mutations, "MAX_IN_FLIGHT", 2)
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with (
        streaming(canvas, ways) as made,
        asyncio.TaskGroup() as tasks,
        locked(shared_database, window),
    ):
        answers = [
            tasks.create_task(made.apply(request_of(create_node(node(f"n{each}"))), window.behalf))
            for each in range(3)
        ]
        await until(lambda: len(ways) == 3)

    assert sorted(ways) == ["call", "stream", "stream"]
    assert sorted(answer.result().revision for answer in answers) == [2, 3, 4]


async def test_a_large_mutation_goes_by_a_call(canvas: Client, ways: list[str]) -> None:
    """CV27"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with streaming(canvas, ways) as made:
        large = request_of(create_node(node("a", prompt="x" * mutations.MAX_MUTATION_BYTES)))

        applied = await made.apply(large, window.behalf)

    assert (applied.revision, ways) == (2, ["call"])


async def test_a_refusal_over_a_stream_is_raised_with_its_facts(
    canvas: Client, ways: list[str]
) -> None:
    """CV6, CV27"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas(nodes=[node("a", prompt="now")]))
    async with streaming(canvas, ways) as made:
        with pytest.raises(Failure) as caught:
            await made.apply(
                request_of(patch_node("a", {"metadata.prompt": "x"}, {"metadata.prompt": "old"})),
                window.behalf,
            )

    assert ways == ["stream"]
    assert isinstance(caught.value, Conflict)
    assert caught.value.machine_word == "canvas_field_conflict"
    assert caught.value.facts["path"] == "metadata.prompt"


async def test_streams_are_renewed_while_edits_go_on(
    canvas: Client, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CV27"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    opened: list[mutations.Stream] = []

    class Noticed(mutations.Stream):
        def __init__(self, on_late: Callable[[], None]) -> None:
            super().__init__(on_late)
            opened.append(self)

    monkeypatch.setattr(mutations, "Stream", Noticed)
    monkeypatch.setattr(mutations, "RENEW_SECONDS", 0.02)
    applied = 0
    async with streaming(canvas, ways) as made, asyncio.timeout(20):
        before = len(opened)
        while len(opened) < before + 3:
            await made.apply(request_of(create_node(node(f"n{applied}"))), window.behalf)
            applied += 1

    assert "stream" in ways
    assert (await window.read())["revision"] == 1 + applied


async def test_an_answer_that_nobody_waits_for_any_more_disturbs_no_other(
    canvas: Client, shared_database: str, ways: list[str]
) -> None:
    """CV27"""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    async with (
        streaming(canvas, ways) as made,
        asyncio.TaskGroup() as tasks,
        locked(shared_database, window),
    ):
        left, stays = (
            tasks.create_task(made.apply(request_of(create_node(node(name))), window.behalf))
            for name in "ab"
        )
        await until(lambda: len(ways) == 2)
        left.cancel()

    assert left.cancelled()
    assert stays.result().revision == 3


async def test_a_stream_on_which_an_answer_is_late_is_given_up_for_a_new_one_at_once(
    canvas: Client, shared_database: str, ways: list[str]
) -> None:
    """CV27"""
    window, other = Window(canvas, new_account()), Window(canvas, new_account())
    await window.apply(create_canvas())
    await other.apply(create_canvas())
    async with (
        streaming(canvas, ways) as made,
        asyncio.TaskGroup() as tasks,
        locked(shared_database, window),
    ):
        patient = tasks.create_task(made.apply(request_of(create_node(node("a"))), window.behalf))
        await until(lambda: ways == ["stream"])
        with pytest.raises(Unavailable):
            await made.apply(request_of(create_node(node("b"))), window.behalf, seconds=0.2)
        await until(lambda: ways == ["stream", "stream", "call"])

        # The canvas is held up still.
        async with asyncio.timeout(5):
            while ways[-1] != "stream":
                await made.apply(request_of(create_node(node(secrets.token_hex(4)))), other.behalf)

    # What nobody waited for any more was not begun.
    assert patient.result().revision == 2
    assert [found["id"] for found in (await window.read())["nodes"]] == ["a"]


async def test_an_instance_without_its_database_is_left_and_its_edit_goes_by_a_call(
    shared_database: str, objects_url: str, ways: list[str]
) -> None:
    """CV12, CV27"""
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
        streaming(canvas, ways) as made,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        ways.clear()
        proxy.cut_at(b"once", answered=False)

        applied = await made.apply(
            request_of(create_node(node("a")), mutation_id="once"), window.behalf
        )

    assert proxy.cuts == 1
    assert (applied.revision, applied.replayed) == (2, False)
    assert ways == ["stream", "call"]


async def test_an_edit_that_no_instance_has_a_database_for_is_unavailable(
    shared_database: str, objects_url: str, ways: list[str]
) -> None:
    """CV12, CV27"""
    async with (
        cutting_proxy(shared_database) as (proxy, url),
        canvas_service(canvas_settings(url, objects_url)) as canvas,
        streaming(canvas, ways) as made,
    ):
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        ways.clear()
        proxy.cut_at(b"once", answered=False, times=2)

        with pytest.raises(Unavailable):
            await made.apply(request_of(create_node(node("a")), mutation_id="once"), window.behalf)

    assert ways == ["stream", "call"]


class Entrance:
    """Streams that came to the service wait here until it is opened."""

    def __init__(self) -> None:
        self.came = 0
        self.opened = asyncio.Event()


@pytest.fixture
def entrance(monkeypatch: pytest.MonkeyPatch) -> Entrance:
    """Where streams wait in a service that is started now."""
    entrance = Entrance()
    admitted = CanvasRpc.ApplyMutations

    async def waiting(
        self: CanvasRpc,
        requests: AsyncIterator[pb.ApplyMutationsRequest],
        context: Context,
    ) -> AsyncIterator[pb.ApplyMutationsResponse]:
        entrance.came += 1
        await entrance.opened.wait()
        async for response in admitted(self, requests, context):
            yield response

    monkeypatch.setattr(CanvasRpc, "ApplyMutations", waiting)
    return entrance


async def test_a_stream_is_used_once_it_is_connected(
    shared_database: str, objects_url: str, ways: list[str], entrance: Entrance
) -> None:
    """CV27"""
    account = new_account()
    async with (
        canvas_service(canvas_settings(shared_database, objects_url)) as canvas,
        mutating(canvas, streams=1) as made,
        asyncio.timeout(20),
    ):
        await until(lambda: entrance.came == 1)
        await made.apply(request_of(create_canvas()), account, seconds=5)
        ways_before = list(ways)

        entrance.opened.set()
        while ways[-1] != "stream":
            await made.apply(request_of(create_node(node(secrets.token_hex(4)))), account)

    assert ways_before == ["call"]
    assert entrance.came == 1


async def test_a_stream_that_is_not_connected_in_time_is_opened_again(
    shared_database: str,
    objects_url: str,
    entrance: Entrance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CV27"""
    monkeypatch.setattr(mutations, "CONNECT_SECONDS", 0.05)
    async with (
        canvas_service(canvas_settings(shared_database, objects_url)) as canvas,
        mutating(canvas, streams=1),
    ):
        await until(lambda: entrance.came >= 2)


async def test_edits_go_by_calls_while_there_is_no_stream(canvas: Client, ways: list[str]) -> None:
    """CV27"""
    account = new_account()

    applied = await Mutations(canvas, streams=1).apply(request_of(create_canvas()), account)

    assert (applied.revision, ways) == (1, ["call"])
