"""Histories of the real canvas service: many windows at once, answers lost, requests repeated."""

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servicekit.client import Client
from servicekit.errors import Failure, Unavailable
from services.canvas.domain.edits import Edit
from services.canvas.domain.values import equal
from tests.support.canvas import Window, create_canvas
from tests.support.canvas_model import Model, edits
from tests.support.services import new_account

REQUESTS = st.lists(st.lists(edits(), min_size=1, max_size=3), min_size=1, max_size=6)
WINDOWS = st.lists(REQUESTS, min_size=2, max_size=5)


class History:
    """What windows sent, and what they were told."""

    def __init__(self) -> None:
        self.sent: dict[str, list[Edit]] = {}
        self.acknowledged: dict[str, int] = {}
        self.refused: set[str] = set()


async def send(window: Window, history: History, mutation_id: str, chance: random.Random) -> None:
    """Sends a request, now and then losing the answer, until there is one."""
    operations = [edit.payload() for edit in history.sent[mutation_id]]
    while True:
        patience = chance.choice([None, None, 0.0, 0.001, 0.003, 0.006])
        try:
            async with asyncio.timeout(patience):
                answer = await window.apply(*operations, mutation_id=mutation_id)
        except (TimeoutError, Unavailable):
            continue
        except Failure:
            history.refused.add(mutation_id)
            return
        history.acknowledged[mutation_id] = answer.revision
        return


@given(WINDOWS, st.integers(0, 2**32))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_every_history_equals_one_after_another(
    canvas: Client, windows: list[list[list[Edit]]], seed: int
) -> None:
    """CV1, CV10, CV12: acknowledged once, applied once, in the order of the revisions."""
    history = History()
    window = Window(canvas, new_account())
    await window.apply(create_canvas(title="T"), mutation_id="create")
    chance = random.Random(seed)

    async def work(name: int, requests: list[list[Edit]]) -> None:
        for number, request in enumerate(requests):
            mutation_id = f"{name}-{number}"
            history.sent[mutation_id] = request
            await send(window, history, mutation_id, chance)

    await asyncio.gather(*(work(name, requests) for name, requests in enumerate(windows)))
    log = (await window.changes(1)).changes
    found = await window.read()

    by_revision = {change.revision: change.mutation_id for change in log}
    assert sorted(by_revision) == list(range(2, found["revision"] + 1))
    assert {name: revision for revision, name in by_revision.items()} == history.acknowledged
    assert history.refused.isdisjoint(history.acknowledged)
    model = Model()
    for change in log:
        for edit in history.sent[change.mutation_id]:
            assert model.apply(edit)
    assert equal_canvas(found, model)


def equal_canvas(found: dict[str, Any], model: Model) -> bool:
    """Whether a read is just what the model holds, order included."""
    fields = {
        name: value
        for name, value in found.items()
        if name not in ("nodes", "connections", "revision", "hash", "etag")
    }
    return (
        equal(found["nodes"], model.nodes)
        and equal(found["connections"], model.links)
        and equal(fields, model.fields)
    )


async def test_ten_windows_of_edits_are_each_applied_once(canvas: Client) -> None:
    """CV1, CV10: acknowledged equals applied, revisions are dense, nothing is lost."""
    window = Window(canvas, new_account())
    await window.apply(
        create_canvas(nodes=[{"id": f"n{number}", "type": "t"} for number in range(10)])
    )
    seen: list[int | None] = [None] * 10

    async def work(name: int) -> None:
        for number in range(30):
            patch = {
                "type": "patch_node",
                "id": f"n{name}",
                "patch": {"count": number},
                "before": {"count": seen[name]},
            }
            await window.apply(patch)
            seen[name] = number

    await asyncio.gather(*(work(name) for name in range(10)))
    found = await window.read()

    assert found["revision"] == 301
    assert [node["count"] for node in found["nodes"]] == [29] * 10
