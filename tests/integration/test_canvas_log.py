"""The log of changes, receipts, media and agents over gRPC on real PostgreSQL."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import AssetsServiceStub
from gesso.canvas.v1 import canvas_pb2 as pb

from servicekit.client import Client
from servicekit.errors import Conflict, FailedPrecondition, Invalid
from servicekit.objects import Objects
from services.canvas.domain.canonical import canonical, object_hash
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
    window = Window(canvas, new_account())
    await window.apply(create_canvas(nodes=[node("a", prompt="x"), node("b")]))
    return window


@pytest.fixture
async def database_connection(
    shared_database: str,
) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(shared_database)
    yield connection
    await connection.close()


def content_hash(canvas: dict[str, Any]) -> str:
    """The hash that anybody can compute from a read (CV4)."""
    hashed = 0
    for name, value in canvas.items():
        if name in ("nodes", "connections"):
            for item in value:
                hashed ^= object_hash(name.rstrip("s"), item["id"], canonical(item))
        elif name not in ("revision", "hash", "etag"):
            hashed ^= object_hash("field", name, canonical(value))
    return f"{hashed:016x}"


def applied(canvas: dict[str, Any], log: pb.ListChangesResponse) -> dict[str, Any]:
    """A read with the changes of a log made, as a session does it."""
    canvas = json.loads(json.dumps(canvas))
    for change in log.changes:
        for operation in json.loads(change.operations):
            _apply(canvas, operation)
        canvas["revision"] = change.revision
    canvas["hash"], canvas["etag"] = log.content_hash, log.etag
    return canvas


def _apply(canvas: dict[str, Any], operation: dict[str, Any]) -> None:
    nodes, links = canvas["nodes"], canvas["connections"]
    match operation:
        case {"type": "create_node", "node": made}:
            nodes.append(made)
        case {"type": "patch_node", "id": node_id, "patch": patch}:
            (found,) = [each for each in nodes if each["id"] == node_id]
            for path, value in patch.items():
                *outer, last = path.split(".")
                here = found
                for name in outer:
                    here[name] = here.get(name) or {}
                    here = here[name]
                here[last] = value
        case {"type": "remove_node", "id": node_id}:
            nodes[:] = [each for each in nodes if each["id"] != node_id]
            links[:] = [
                each for each in links if node_id not in (each["fromNodeId"], each["toNodeId"])
            ]
        case {"type": "create_connection", "connection": made}:
            links.append(made)
        case {"type": "update_connection", "id": link_id, "connection": made}:
            links[:] = [made if each["id"] == link_id else each for each in links]
        case {"type": "remove_connection", "id": link_id}:
            links[:] = [each for each in links if each["id"] != link_id]
        case {"type": "set_field", "field": name, "value": None}:
            canvas.pop(name, None)
        case {"type": "set_field", "field": name, "value": value}:
            canvas[name] = value
        case _:
            raise AssertionError(operation)


async def test_changes_applied_to_an_old_read_equal_the_new_read(window: Window) -> None:
    """CV21, CV4"""
    old = await window.read()
    await window.apply(create_node(node("c")), create_link(link("l", "a", "c")))
    await window.apply(
        patch_node("a", {"metadata.prompt": "y", "size": {"w": 1}}, {"metadata.prompt": "x"}),
        update_link({**link("l", "c", "a"), "label": "back"}, link("l", "a", "c")),
        set_field("title", "  New ", "A canvas"),
        set_field("timeline", {"zoom": 1}),
    )
    await window.apply(create_link(link("m", "a", "b")), remove_link(link("m", "a", "b")))
    await window.apply(remove_node(node("c")), set_field("timeline", None, {"zoom": 1}))

    new, log = await window.read(), await window.changes(old["revision"])

    assert applied(old, log) == new
    assert [change.revision for change in log.changes] == [2, 3, 4, 5]
    assert new["hash"] == log.content_hash == content_hash(new)


async def test_who_is_up_to_date_gets_no_changes(window: Window) -> None:
    """CV21"""
    log = await window.changes(1)

    assert (log.revision, list(log.changes)) == (1, [])


async def test_changes_name_the_request_that_made_them(window: Window) -> None:
    """CV21"""
    await window.apply(set_field("timeline", 1), mutation_id="mine")

    (change,) = (await window.changes(1)).changes

    assert change.mutation_id == "mine"
    assert json.loads(change.operations) == [{"type": "set_field", "field": "timeline", "value": 1}]


async def test_changes_that_are_not_kept_in_full_are_expired(
    window: Window, database_connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """CV21"""
    for number in range(3):
        await window.apply(set_field("timeline", number, number - 1 if number else None))
    await database_connection.execute(
        "DELETE FROM canvas.change WHERE revision <= 2 AND canvas_key ="
        " (SELECT key FROM canvas.canvas WHERE account_id = $1)",
        window.behalf.account_id,
    )

    kept = await window.changes(2)
    for gone in (0, 1, 9):
        with pytest.raises(FailedPrecondition) as caught:
            await window.changes(gone)
        assert caught.value.machine_word == "changes_expired"

    assert [change.revision for change in kept.changes] == [3, 4]


async def test_too_many_changes_at_once_are_expired(
    window: Window, database_connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """CV21"""
    big = "x" * 1_500_000
    for number in range(3):
        await window.apply(create_node(node(f"n{number}", content=big)))

    with pytest.raises(FailedPrecondition):
        await window.changes(1)

    assert len((await window.changes(2)).changes) == 2


async def test_a_canvas_created_anew_is_not_the_one_that_it_was(window: Window) -> None:
    """CV21, CV15"""
    old = await window.read()
    await window.delete()
    await window.apply(create_canvas())
    await window.apply(set_field("timeline", 1))

    with pytest.raises(FailedPrecondition):
        await window.changes(1, old["etag"])

    assert (await window.read())["etag"] != old["etag"]


async def test_what_is_old_is_forgotten_and_a_late_replay_applies_nothing_twice(
    window: Window, canvas: Client, shared_database: str, objects_url: str
) -> None:
    """CV22"""
    await window.apply(create_node(node("c")), mutation_id="old")
    connection = await asyncpg.connect(shared_database)
    for table, column, days in (("receipt", "created_at", 31), ("change", "at", 2)):
        where = (
            "account_id = $1"
            if table == "receipt"
            else "canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1)"
        )
        await connection.execute(
            f"UPDATE canvas.{table} SET {column} = {column} - interval '{days} days' WHERE {where}",
            window.behalf.account_id,
        )

    async def left_over() -> int:
        count: int = await connection.fetchval(
            "SELECT (SELECT count(*) FROM canvas.receipt WHERE account_id = $1)"
            "     + (SELECT count(*) FROM canvas.change"
            "         WHERE canvas_key = (SELECT key FROM canvas.canvas WHERE account_id = $1))",
            window.behalf.account_id,
        )
        return count

    settings = canvas_settings(shared_database, objects_url, sweep_seconds=0.02)
    async with canvas_service(settings):
        while await left_over():
            pass
    await connection.close()

    with pytest.raises(Conflict) as caught:
        await window.apply(create_node(node("c")), mutation_id="old")
    assert caught.value.machine_word == "canvas_field_conflict"
    with pytest.raises(FailedPrecondition):
        await window.changes(0)


def ids_of(pair: dict[str, str]) -> dict[str, str]:
    resource_id = pair["storageKey"].removeprefix("resource:")
    return {"resourceId": resource_id, "assetId": pair["assetId"]}


class Media:
    """Files and assets of an account."""

    def __init__(self, client: Client, window: Window, objects_url: str) -> None:
        self._client = client
        self._window = window
        self._objects = Objects.at(objects_url)
        self._stub = AssetsServiceStub(client.channel)

    async def resource(self) -> str:
        stored = await self._objects.put(secrets.token_bytes(16))
        request = assets_pb2.CreateResourceRequest(
            request_id=secrets.token_hex(8), sha256=stored.sha256, kind="file"
        )
        made = await self._client.call(self._stub.CreateResource, request, self._window.behalf)
        return made.resource.resource_id

    async def asset(self, asset_id: str, resource_id: str | None) -> str:
        asset = assets_pb2.Asset(asset_id=asset_id, kind="image", resource_id=resource_id)
        request = assets_pb2.PutAssetRequest(asset=asset)
        await self._client.call(self._stub.PutAsset, request, self._window.behalf)
        return asset_id


@pytest.fixture
def media(canvas: Client, window: Window, objects_url: str) -> Media:
    return Media(canvas, window, objects_url)


async def test_nodes_name_media_that_are_there(window: Window, media: Media) -> None:
    """CV20"""
    resource = await media.resource()
    asset = await media.asset("as_1", resource)
    named = {"storageKey": f"resource:{resource}", "assetId": asset}

    await window.apply(
        create_node(node("one", **named)),
        create_node(node("two", videoPreview=named, content="resource:anything")),
        patch_node("a", {"metadata.storageKey": named["storageKey"]}),
        patch_node("b", {"metadata.poster": named}),
    )

    assert len((await window.read())["nodes"]) == 4


async def test_media_that_are_not_there_are_told_and_nothing_is_applied(
    window: Window, media: Media, canvas: Client, objects_url: str
) -> None:
    """CV20"""
    resource, other = await media.resource(), await media.resource()
    await media.asset("as_1", resource)
    stranger = Window(canvas, new_account())
    theirs = await Media(canvas, stranger, objects_url).resource()
    pair = {"storageKey": f"resource:{other}", "assetId": "as_1"}

    with pytest.raises(Invalid) as caught:
        await window.apply(
            set_field("timeline", 1),
            create_node(node("one", storageKey="resource:rs_gone")),
            create_node(node("two", preview={"list": [pair]})),
            patch_node("a", {"metadata.assetId": "as_gone"}),
            patch_node("b", {"metadata.storageKey": f"resource:{theirs}"}),
        )

    assert caught.value.machine_word == "canvas_media_assets_pending"
    assert caught.value.facts["missing"] == [
        {"nodeId": "one", "path": "metadata", "resourceId": "rs_gone"},
        {
            "nodeId": "two",
            "path": "metadata.preview.list.0",
            "resourceId": other,
            "assetId": "as_1",
        },
        {"nodeId": "a", "path": "metadata", "assetId": "as_gone"},
        {"nodeId": "b", "path": "metadata", "resourceId": theirs},
    ]
    assert (await window.read())["revision"] == 1


@pytest.mark.parametrize("length", [10, 5_000])
async def test_of_many_media_that_are_missing_the_first_are_told(
    window: Window, length: int
) -> None:
    """CV20"""
    gone = [{"storageKey": f"resource:rs_{number}" + "x" * length} for number in range(1_000)]

    with pytest.raises(Invalid) as caught:
        await window.apply(*(create_node(node(f"n{k}", list=gone[k::10])) for k in range(10)))

    missing = caught.value.facts["missing"]
    assert len(json.dumps(missing)) <= 4_096 + 400
    assert missing[0]["path"] == "metadata.list.0"
    assert caught.value.detail.startswith("1000 of the files or assets")
    assert caught.value.detail.endswith(f"The first {len(missing)} are listed.")


async def test_only_touched_nodes_are_looked_at(
    window: Window, media: Media, canvas: Client
) -> None:
    """CV20"""
    await media.asset("as_1", None)
    await window.apply(create_node(node("c", assetId="as_1")))
    await canvas.call(
        AssetsServiceStub(canvas.channel).DeleteAsset,
        assets_pb2.DeleteAssetRequest(asset_id="as_1"),
        window.behalf,
    )

    await window.apply(patch_node("a", {"title": "Mine"}, {"title": "A node"}))
    with pytest.raises(Invalid):
        await window.apply(patch_node("c", {"title": "Mine"}, {"title": "A node"}))
    await window.apply(patch_node("c", {"metadata.assetId": None}, {"metadata.assetId": "as_1"}))


async def admit(window: Window, task_id: str) -> pb.AdmitAgentResponse:
    request = pb.AdmitAgentRequest(canvas_id=window.canvas_id, task_id=task_id)
    return await window.client.call(window.stub.AdmitAgent, request, window.behalf)


async def set_state(window: Window, task_id: str, state: pb.AgentState.ValueType) -> None:
    request = pb.SetAgentStateRequest(canvas_id=window.canvas_id, task_id=task_id, state=state)
    await window.client.call(window.stub.SetAgentState, request, window.behalf)


async def release(window: Window, task_id: str) -> None:
    request = pb.ReleaseAgentRequest(canvas_id=window.canvas_id, task_id=task_id)
    await window.client.call(window.stub.ReleaseAgent, request, window.behalf)


async def test_one_agent_run_has_a_canvas_until_it_gives_it_back(window: Window) -> None:
    """CV23"""
    await admit(window, "tk_1")
    again = await admit(window, "tk_1")
    with pytest.raises(Conflict) as busy:
        await admit(window, "tk_2")
    await set_state(window, "tk_1", pb.AGENT_STATE_AWAITING_APPROVAL)
    with pytest.raises(Conflict):
        await set_state(window, "tk_2", pb.AGENT_STATE_RUNNING)
    status = await window.status()
    await release(window, "tk_2")
    with pytest.raises(Conflict):
        await admit(window, "tk_2")
    await release(window, "tk_1")
    await release(window, "tk_1")
    free = await window.status()

    assert again.agent.state == pb.AGENT_STATE_QUEUED
    assert busy.value.machine_word == "canvas_agent_busy"
    assert (busy.value.facts["task_id"], busy.value.facts["state"]) == ("tk_1", "queued")
    assert busy.value.facts["since"].endswith("Z")
    assert (status.agent.task_id, status.agent.state) == (
        "tk_1",
        pb.AGENT_STATE_AWAITING_APPROVAL,
    )
    assert not free.HasField("agent")
    assert (await admit(window, "tk_2")).agent.task_id == "tk_2"


async def test_an_agent_needs_a_canvas_and_ends_with_it(window: Window, canvas: Client) -> None:
    """CV23"""
    nowhere = Window(canvas, window.behalf, "nowhere")
    with pytest.raises(Conflict) as missing:
        await admit(nowhere, "tk_1")
    with pytest.raises(Conflict):
        await set_state(window, "tk_1", pb.AGENT_STATE_RUNNING)
    with pytest.raises(Invalid):
        await set_state(window, "tk_1", pb.AGENT_STATE_UNSPECIFIED)
    with pytest.raises(Invalid):
        await admit(window, "")
    await admit(window, "tk_1")
    await window.delete()
    await window.apply(create_canvas())

    assert missing.value.machine_word == "canvas_object_missing"
    assert (await admit(window, "tk_2")).agent.task_id == "tk_2"
