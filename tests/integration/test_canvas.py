"""The canvas service over gRPC on real PostgreSQL."""

import asyncio
from typing import Any

import asyncpg
import pytest
from gesso.canvas.v1 import canvas_pb2 as pb
from gesso.canvas.v1.canvas_pb2_grpc import CanvasServiceStub

from servicekit.client import Client
from servicekit.errors import Conflict, Invalid, NotFound, TooMany, Unavailable
from servicekit.postgres import DatabaseSettings
from tests.support.canvas import (
    Window,
    create_canvas,
    create_link,
    create_node,
    link,
    node,
    patch_node,
    remove_link,
    remove_node,
    set_field,
    update_link,
)
from tests.support.services import canvas_service, canvas_settings, new_account


@pytest.fixture
async def window(canvas: Client) -> Window:
    """A window on an empty canvas."""
    window = Window(canvas, new_account())
    await window.apply(create_canvas())
    return window


async def test_creating_commits_revision_one_and_each_request_adds_one(window: Window) -> None:
    """CV1"""
    first = await window.read()
    await window.apply(create_node(node("a")), create_node(node("b")))

    second = await window.read()

    assert (first["revision"], second["revision"]) == (1, 2)
    assert [found["id"] for found in second["nodes"]] == ["a", "b"]


async def test_all_eight_operations_apply_in_order(window: Window) -> None:
    """CV1"""
    await window.apply(
        create_node(node("a", prompt="x")),
        create_node(node("b")),
        create_link(link("l", "a", "b")),
        patch_node("a", {"metadata.prompt": "y"}, {"metadata.prompt": "x"}),
        update_link({**link("l", "b", "a"), "label": "back"}, link("l", "a", "b")),
        set_field("timeline", {"zoom": 2}, None),
    )
    await window.apply(
        remove_link({**link("l", "b", "a"), "label": "back"}),
        remove_node(node("b")),
        set_field("title", "  New  ", "A canvas"),
    )

    after = await window.read()

    assert after["nodes"] == [node("a", prompt="y")]
    assert after["connections"] == []
    assert (after["title"], after["timeline"]) == ("New", {"zoom": 2})


async def test_a_stale_baseline_fails_the_whole_request(window: Window) -> None:
    """CV6"""
    await window.apply(create_node(node("a", prompt="now")))

    with pytest.raises(Conflict) as caught:
        await window.apply(
            create_node(node("b")),
            patch_node("a", {"metadata.prompt": "mine"}, {"metadata.prompt": "then"}),
        )

    assert caught.value.machine_word == "canvas_field_conflict"
    assert caught.value.facts == {
        "operation_index": 1,
        "object_id": "a",
        "path": "metadata.prompt",
        "current_value": "now",
    }
    assert (await window.read())["nodes"] == [node("a", prompt="now")]


async def test_the_same_mutation_eight_times_at_once_applies_once(window: Window) -> None:
    """CV10"""
    answers = await asyncio.gather(
        *(window.apply(create_node(node("a")), mutation_id="once") for _ in range(8))
    )

    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert len({answer.receipt for answer in answers}) == 1
    assert (await window.read())["revision"] == 2


async def test_a_canvas_is_created_once_by_eight_at_once(canvas: Client) -> None:
    """CV10"""
    window = Window(canvas, new_account())

    answers = await asyncio.gather(
        *(window.apply(create_canvas(), mutation_id="once") for _ in range(8))
    )

    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert (await window.read())["revision"] == 1


async def test_a_receipt_outlives_its_canvas_and_revives_nothing(canvas: Client) -> None:
    """CV11"""
    window = Window(canvas, new_account())
    first = await window.apply(create_canvas(), mutation_id="make")
    await window.delete()

    again = await window.apply(create_canvas(), mutation_id="make")

    assert again.receipt == first.receipt
    assert again.replayed
    with pytest.raises(NotFound):
        await window.read()
    with pytest.raises(Conflict) as caught:
        await window.apply(create_node(node("late")))
    assert caught.value.machine_word == "canvas_object_missing"
    assert caught.value.facts["object_type"] == "canvas"
    await window.apply(create_canvas(title="Anew"))
    assert (await window.read())["revision"] == 1


async def test_another_payload_under_the_same_mutation_id_is_refused(window: Window) -> None:
    """CV10"""
    await window.apply(create_node(node("a")), mutation_id="same")

    with pytest.raises(Conflict) as caught:
        await window.apply(create_node(node("b")), mutation_id="same")

    assert caught.value.machine_word == "canvas_mutation_id_reused"


async def test_numbers_written_differently_are_the_same_payload(window: Window) -> None:
    """CV3"""
    first = pb.Operation(create_node=pb.CreateNode(node=b'{"id":"a","type":"t","n":1}'))
    second = pb.Operation(create_node=pb.CreateNode(node=b'{"n":1.0,"type":"t","id":"a"}'))
    await window.apply(first, mutation_id="same")

    again = await window.apply(second, mutation_id="same")

    assert again.replayed


async def test_someone_elses_canvas_is_none(window: Window, canvas: Client) -> None:
    """CV13"""
    stranger = Window(canvas, new_account())

    with pytest.raises(NotFound):
        await stranger.read()
    with pytest.raises(Conflict) as caught:
        await stranger.apply(create_node(node("a")))
    assert caught.value.machine_word == "canvas_object_missing"
    with pytest.raises(NotFound):
        await stranger.status()
    with pytest.raises(NotFound):
        await stranger.changes(0)
    with pytest.raises(Conflict):
        await stranger.acquire("a", "s")
    await stranger.apply(create_canvas(title="Mine"))
    assert (await window.read())["title"] == "A canvas"


async def test_removing_a_node_takes_its_connections_along(window: Window) -> None:
    """CV8"""
    await window.apply(
        *(create_node(node(name)) for name in "abc"),
        create_link(link("ab", "a", "b")),
        create_link(link("bc", "b", "c")),
        create_link(link("ca", "c", "a")),
    )

    await window.apply(remove_node(node("a")))

    after = await window.read()
    assert [found["id"] for found in after["connections"]] == ["bc"]


@pytest.mark.parametrize(
    ("operation", "object_type"),
    [
        (patch_node("gone", {"title": "x"}, {}), "node"),
        (remove_node(node("gone")), "node"),
        (create_link(link("l", "a", "gone")), "node"),
        (update_link(link("gone", "a", "a"), link("gone", "a", "a")), "connection"),
        (remove_link(link("gone", "a", "a")), "connection"),
    ],
)
async def test_what_is_gone_is_never_created_by_an_edit(
    window: Window, operation: dict[str, Any], object_type: str
) -> None:
    """CV8"""
    await window.apply(create_node(node("a")))

    with pytest.raises(Conflict) as caught:
        await window.apply(operation)

    assert caught.value.machine_word == "canvas_object_missing"
    assert caught.value.facts["object_type"] == object_type


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b'{"id":"a","type":"t","x":1e999}',
        b'{"id":"a","type":"t","x":1,"x":2}',
        b'{"id":"a","type":"t","x":"\\ud800"}',
        b'{"id":"a","type":"t","x":"\\u0000"}',
        b'{"id":"a","type":"t","x":' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"id":"a","type":"t","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"id":"a","type":"t","x":' + b"9" * 5_000 + b"}",
        b'{"id":"a","type":"t"',
        b"\xff",
        b"[]",
        b'{"id":7,"type":"t"}',
        b'{"id":"","type":"t"}',
        b'{"id":"a"}',
        b'{"id":"a","type":"t","content":"data:image/png;base64,iVBORw0KGgo="}',
    ],
)
async def test_what_cannot_be_a_node_is_refused_and_nothing_is_stored(
    window: Window, text: bytes
) -> None:
    """CV2"""
    with pytest.raises(Invalid) as caught:
        await window.apply(
            create_node(node("fine")), pb.Operation(create_node=pb.CreateNode(node=text))
        )

    assert caught.value.facts["operation_index"] == 1
    assert (await window.read())["nodes"] == []


@pytest.mark.parametrize(
    "patch",
    [
        {"id": "b"},
        {"id.x": 1},
        {"type": ""},
        {"": 1},
        {"metadata..x": 1},
        {"__proto__.x": 1},
        {"metadata.constructor": 1},
        {"metadata": {}, "metadata.prompt": "x"},
        {"title.x": 1},
        {"metadata.list.0": 1},
        {".".join("a" * 65): 1},
        {".".join("a" * 64): {}},
        {".".join("a" * 5_000): 1},
        {},
    ],
)
async def test_a_path_that_leads_nowhere_is_refused(window: Window, patch: dict[str, Any]) -> None:
    """CV5"""
    await window.apply(create_node(node("a", list=[1])))

    with pytest.raises(Invalid) as caught:
        await window.apply(patch_node("a", patch, {}))

    assert caught.value.machine_word == "invalid_operation"


async def test_a_path_leads_as_deep_as_a_node_may_be(window: Window) -> None:
    """CV5"""
    deep = ".".join("a" * 64)
    await window.apply(create_node(node("a")))

    await window.apply(patch_node("a", {deep: 1}, {}))

    found = (await window.read())["nodes"][0]
    for name in deep.split("."):
        found = found[name]
    assert found == 1


async def test_a_prompt_that_mentions_a_data_url_is_fine(window: Window) -> None:
    """CV7"""
    prompt = "data:image/png;base64, is how such a URL begins"

    await window.apply(create_node(node("a", prompt=prompt)))

    assert (await window.read())["nodes"] == [node("a", prompt=prompt)]


@pytest.mark.parametrize("title", ["", " ", "x" * 1_001, 7, None])
async def test_a_title_that_lists_could_not_show_is_refused(window: Window, title: Any) -> None:
    """CV2"""
    with pytest.raises(Invalid) as caught:
        await window.apply(set_field("title", title, "A canvas"))

    assert caught.value.machine_word == "invalid_operation"
    assert caught.value.facts["path"] == "title"


async def test_usage_grows_and_shrinks_with_what_is_kept(
    shared_database: str, objects_url: str
) -> None:
    """CV9"""
    settings = canvas_settings(shared_database, objects_url, max_canvases=2, max_json_bytes=400)
    async with canvas_service(settings) as canvas:
        behalf = new_account()
        windows = [Window(canvas, behalf, name) for name in "abc"]
        await windows[0].apply(create_canvas())
        await windows[1].apply(create_canvas())

        with pytest.raises(TooMany) as canvases:
            await windows[2].apply(create_canvas())
        with pytest.raises(TooMany) as size:
            await windows[0].apply(create_node(node("n", text="x" * 400)))
        await windows[0].delete()
        await windows[2].apply(create_canvas())

    words = {canvases.value.machine_word, size.value.machine_word}
    assert words == {"structured_storage_exceeded"}


async def test_a_canvas_that_stays_locked_is_told_and_the_repeat_applies_once(
    shared_database: str, objects_url: str
) -> None:
    """CV12"""
    settings = canvas_settings(
        shared_database,
        objects_url,
        database=DatabaseSettings(database_url=shared_database, lock_seconds=0.05),
    )
    other = await asyncpg.connect(shared_database)
    async with canvas_service(settings) as canvas:
        window = Window(canvas, new_account())
        await window.apply(create_canvas())
        async with other.transaction():
            await other.execute(
                "SELECT FROM canvas.canvas WHERE account_id = $1 FOR UPDATE",
                window.behalf.account_id,
            )
            with pytest.raises(Unavailable) as caught:
                await window.apply(create_node(node("a")), mutation_id="once")
        answers = [await window.apply(create_node(node("a")), mutation_id="once") for _ in range(2)]
        after = await window.read()
    await other.close()

    assert caught.value.machine_word == "canvas_concurrent_write"
    assert [answer.replayed for answer in answers] == [False, True]
    assert (after["revision"], len(after["nodes"])) == (2, 1)


async def test_a_list_turns_its_pages(canvas: Client) -> None:
    """CV14"""
    behalf = new_account()
    for name in "abcde":
        await Window(canvas, behalf, name).apply(create_canvas(title=name))
    stub = CanvasServiceStub(canvas.channel)
    titles: list[str] = []
    token = ""

    while True:
        page = await canvas.call(
            stub.ListCanvases, pb.ListCanvasesRequest(page_size=2, page_token=token), behalf
        )
        titles += [found.title for found in page.canvases]
        token = page.next_page_token
        if not token:
            break

    assert titles == ["e", "d", "c", "b", "a"]


@pytest.mark.parametrize("token", ["x", "bm90IGpzb24", "WzFd", "WyJhIiwxXQ", "W251bGwsbnVsbF0"])
async def test_a_page_token_of_somebody_else_is_refused(canvas: Client, token: str) -> None:
    stub = CanvasServiceStub(canvas.channel)

    with pytest.raises(Invalid):
        await canvas.call(
            stub.ListCanvases, pb.ListCanvasesRequest(page_token=token), new_account()
        )


async def test_a_caller_without_the_token_is_turned_away(canvas: Client) -> None:
    import grpc

    stub = CanvasServiceStub(canvas.channel)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListCanvases(pb.ListCanvasesRequest(), timeout=5)

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_hash_is_that_of_the_content(window: Window) -> None:
    """CV4"""
    empty = (await window.read())["hash"]
    await window.apply(create_node(node("a")), create_node(node("b")))
    await window.apply(remove_node(node("a")), remove_node(node("b")))

    after = await window.read()

    assert after["hash"] == empty
