"""Edit leases over gRPC on real PostgreSQL (CV18)."""

import asyncio

import asyncpg
import pytest
from gesso.canvas.v1 import canvas_pb2 as pb

from servicekit.client import Client
from servicekit.errors import Conflict, Invalid
from services.canvas.feed import Feed
from tests.support.canvas import (
    Window,
    create_canvas,
    create_node,
    node,
    patch_node,
    remove_node,
    set_field,
)
from tests.support.services import new_account


@pytest.fixture
async def window(canvas: Client) -> Window:
    window = Window(canvas, new_account())
    await window.apply(create_canvas(nodes=[node("a", prompt="x"), node("b")]))
    return window


def proof(node_id: str, session_id: str, token: str) -> list[pb.EditProof]:
    return [pb.EditProof(node_id=node_id, session_id=session_id, token=token)]


async def expire(database: str, window: Window) -> None:
    """Has every lease of the account's canvases run out, as 30 seconds would."""
    connection = await asyncpg.connect(database)
    await connection.execute(
        "UPDATE canvas.lease SET expires_at = clock_timestamp() - interval '1 second'"
        " WHERE canvas_key IN (SELECT key FROM canvas.canvas WHERE account_id = $1)",
        window.behalf.account_id,
    )
    await connection.close()


async def test_a_lease_belongs_to_one_session_until_it_is_over(
    window: Window, shared_database: str
) -> None:
    """CV18"""
    first = await window.acquire("a", "desk")
    again = await window.acquire("a", "desk")
    with pytest.raises(Conflict) as caught:
        await window.acquire("a", "couch")
    await expire(shared_database, window)
    other = await window.acquire("a", "couch")

    assert first.token == again.token
    assert again.expire_time.ToDatetime() >= first.expire_time.ToDatetime()
    assert first.expire_time.ToDatetime() > first.server_time.ToDatetime()
    assert caught.value.machine_word == "canvas_edit_lease_conflict"
    assert caught.value.facts["holder"]["sessionId"] == "desk"
    assert caught.value.facts["holder"]["expiresAt"].endswith("Z")
    assert other.token != first.token


async def test_eight_sessions_at_once_get_one_lease(window: Window) -> None:
    """CV18"""
    answers = await asyncio.gather(
        *(window.acquire("a", f"s{number}") for number in range(8)), return_exceptions=True
    )

    got = [it for it in answers if isinstance(it, pb.AcquireEditLeaseResponse)]
    assert len(got) == 1
    assert all(isinstance(it, Conflict) for it in answers if it not in got)


async def test_a_lease_is_renewed_by_its_token_while_it_holds(
    window: Window, shared_database: str
) -> None:
    """CV18"""
    held = await window.acquire("a", "desk")
    renewed = await window.renew("a", "desk", held.token)
    with pytest.raises(Conflict):
        await window.renew("a", "desk", "another")
    with pytest.raises(Conflict):
        await window.renew("a", "couch", held.token)
    await expire(shared_database, window)
    with pytest.raises(Conflict) as over:
        await window.renew("a", "desk", held.token)

    assert renewed.token == held.token
    assert "holder" not in over.value.facts


async def test_releasing_takes_away_only_ones_own_lease(window: Window) -> None:
    """CV18"""
    held = await window.acquire("a", "desk")
    await window.release("a", "couch", held.token)
    await window.release("a", "desk", "another")
    with pytest.raises(Conflict):
        await window.acquire("a", "couch")
    for _ in range(2):
        await window.release("a", "desk", held.token)

    assert (await window.acquire("a", "couch")).token


async def test_presence_is_told_of_leases_that_change_and_of_no_others(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR10"""
    told: list[str] = []
    monkeypatch.setattr(Feed, "leased", lambda _, __, canvas_id: told.append(canvas_id))

    held = await window.acquire("a", "desk")
    await window.renew("a", "desk", held.token)
    await window.release("a", "desk", "another's")
    await window.release("a", "desk", held.token)
    await window.release("a", "desk", held.token)
    window.canvas_id = "none"
    await window.release("a", "desk", held.token)

    assert told == ["c", "c", "c"]


@pytest.mark.parametrize(
    "patch",
    [
        {"title": "x"},
        {"metadata.prompt": "y"},
        {"metadata.prompt.deep": "y"},
        {"metadata": {"prompt": "y"}},
        {"metadata.content": "y"},
        {"metadata.richText": {}},
        {"metadata.composerContent": "y"},
    ],
)
async def test_text_that_another_session_leases_cannot_be_written(
    window: Window, patch: dict[str, object]
) -> None:
    """CV18"""
    await window.apply(set_field("timeline", 1))
    await window.acquire("a", "couch")
    before = {"metadata": {"prompt": "x"}, "title": "A node", "metadata.prompt": "x"}

    with pytest.raises(Conflict) as caught:
        await window.apply(
            set_field("timeline", 2, 1),
            patch_node("a", patch, {path: before.get(path) for path in patch}),
        )

    assert caught.value.machine_word == "canvas_edit_lease_conflict"
    assert caught.value.facts["operation_index"] == 1
    assert caught.value.facts["holder"]["sessionId"] == "couch"
    assert (await window.read())["timeline"] == 1


async def test_everything_but_text_can_be_written_meanwhile(window: Window) -> None:
    """CV18"""
    await window.acquire("a", "couch")

    await window.apply(
        patch_node("a", {"position": {"x": 1, "y": 1}}, {"position": node("a")["position"]}),
        patch_node("a", {"metadata.status": "loading"}),
        patch_node("b", {"title": "Free"}, {"title": "A node"}),
    )
    left = (await window.read())["nodes"][0]
    await window.apply(remove_node(left))

    assert [found["title"] for found in (await window.read())["nodes"]] == ["Free"]


async def test_a_proof_lets_its_session_write_and_a_wrong_one_does_not(
    window: Window, shared_database: str
) -> None:
    """CV18"""
    held = await window.acquire("a", "desk")
    write = patch_node("a", {"metadata.prompt": "y"}, {"metadata.prompt": "x"})
    for wrong in (
        None,
        proof("a", "desk", "another"),
        proof("a", "couch", held.token),
        proof("b", "desk", held.token),
    ):
        with pytest.raises(Conflict):
            await window.apply(write, proofs=wrong)
    await window.apply(write, proofs=proof("a", "desk", held.token))
    await expire(shared_database, window)
    back = patch_node("a", {"metadata.prompt": "x"}, {"metadata.prompt": "y"})
    with pytest.raises(Conflict):
        await window.apply(back, proofs=proof("a", "desk", held.token))
    await window.apply(back)

    assert (await window.read())["nodes"][0]["metadata"]["prompt"] == "x"


async def test_proofs_are_not_part_of_the_payload(window: Window) -> None:
    """CV10, CV18"""
    held = await window.acquire("a", "desk")
    write = patch_node("a", {"metadata.prompt": "y"}, {"metadata.prompt": "x"})
    await window.apply(write, mutation_id="m", proofs=proof("a", "desk", held.token))

    again = await window.apply(write, mutation_id="m")

    assert again.replayed


async def test_a_lease_ends_with_its_node_and_needs_one(window: Window) -> None:
    """CV18"""
    await window.acquire("b", "desk")
    await window.apply(remove_node(node("b")))
    await window.apply(create_node(node("b")))

    await window.apply(patch_node("b", {"title": "Anew"}, {"title": "A node"}))
    with pytest.raises(Conflict) as nowhere:
        await window.acquire("gone", "desk")

    assert nowhere.value.machine_word == "canvas_object_missing"
    with pytest.raises(Invalid):
        await window.acquire("a", "")


async def test_the_status_names_the_leases_that_hold(window: Window, shared_database: str) -> None:
    """CV18"""
    await window.acquire("a", "desk")
    await window.acquire("b", "couch")
    before = await window.status()
    await expire(shared_database, window)
    after = await window.status()

    assert {(lease.node_id, lease.session_id) for lease in before.leases} == {
        ("a", "desk"),
        ("b", "couch"),
    }
    assert list(after.leases) == []


async def test_a_lease_and_a_write_never_pass_each_other(
    window: Window, shared_database: str
) -> None:
    """CV18: a lease that was given is not written past by a request that began before it."""
    other = await asyncpg.connect(shared_database)
    async with other.transaction():
        # A write that is under way has the canvas.
        await other.execute(
            "SELECT FROM canvas.canvas WHERE account_id = $1 FOR UPDATE", window.behalf.account_id
        )
        acquiring = asyncio.create_task(window.acquire("a", "desk"))
        done, _ = await asyncio.wait({acquiring}, timeout=0.05)
        assert not done
    held = await acquiring
    await other.close()

    assert held.token
