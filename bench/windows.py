"""Ten windows edit one canvas at random for a minute, and then it is counted: nothing is lost.

`python -m bench.windows [SECONDS]` runs a suite of its own and ends with 1 if anything differs.
"""

import asyncio
import json
import random
import secrets
import sys
import time
from typing import Any

import asyncpg

from bench.http import Browser
from bench.suite import Bench, bench_suite
from servicekit.telemetry import configure_logs
from services.canvas.domain.canonical import canonical, hex_of, object_hash

WINDOWS = 10
SECONDS = 60
CANVAS = "crowd"
# Every tenth request is sent twice, as if its answer was lost.
REPEATED = 0.1

Node = dict[str, Any]


class Editor:
    """A window with nodes of its own on the canvas of all."""

    def __init__(self, name: int, browser: Browser) -> None:
        self._name = name
        self.browser = browser
        self._chance = random.Random(name)
        self.nodes: dict[str, Node] = {}
        self.links: dict[str, Node] = {}
        self.acknowledged: dict[str, int] = {}

    async def work(self, seconds: float) -> None:
        """Edits until the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            edits = [self._edit() for _ in range(self._chance.choice((1, 1, 1, 2, 5)))]
            mutation_id = secrets.token_hex(8)
            times = 2 if self._chance.random() < REPEATED else 1
            for _ in range(times):
                body = await self.browser.change(CANVAS, *edits, mutation_id=mutation_id)
            self.acknowledged[mutation_id] = json.loads(body)["revision"]

    def _edit(self) -> dict[str, Any]:
        kinds = [self._create]
        if self.nodes:
            kinds += [self._patch] * 6
        if len(self.nodes) > 20:
            kinds += [self._remove] * 2
        if len(self.nodes) > 1:
            kinds += [self._link]
        return self._chance.choice(kinds)()

    def _create(self) -> dict[str, Any]:
        node = {"id": f"w{self._name}-{secrets.token_hex(4)}", "type": "text", "title": "", "x": 0}
        self.nodes[str(node["id"])] = node
        return {"type": "create_node", "node": dict(node)}

    def _patch(self) -> dict[str, Any]:
        node = self.nodes[self._chance.choice(list(self.nodes))]
        name = self._chance.choice(("x", "title"))
        value = self._chance.choice(
            (self._chance.randrange(10**6), "é" * self._chance.randrange(99))
        )
        before, node[name] = node[name], value
        return {
            "type": "patch_node",
            "id": node["id"],
            "patch": {name: value},
            "before": {name: before},
        }

    def _remove(self) -> dict[str, Any]:
        node = self.nodes.pop(self._chance.choice(list(self.nodes)))
        ends = {"fromNodeId", "toNodeId"}
        self.links = {
            link_id: link
            for link_id, link in self.links.items()
            if node["id"] not in {link[end] for end in ends}
        }
        return {"type": "remove_node", "id": node["id"], "expected": node}

    def _link(self) -> dict[str, Any]:
        start, end = self._chance.sample(list(self.nodes), 2)
        link = {"id": f"l{secrets.token_hex(6)}", "fromNodeId": start, "toNodeId": end}
        self.links[link["id"]] = link
        return {"type": "create_connection", "connection": link}


async def main(seconds: float) -> int:
    """Has the windows edit, and says what is there then; 1 if it is not what was acknowledged."""
    configure_logs("bench", "warning")
    async with bench_suite(workers=1) as bench:
        editors = await _editors(bench)
        await asyncio.gather(*(editor.work(seconds) for editor in editors))
        found = await _counted(bench, editors)
    sent = sum(len(editor.acknowledged) for editor in editors)
    print(f"{sent} requests of {WINDOWS} windows in {seconds:.0f} s were acknowledged")
    for what, is_so in found.items():
        print(f"{'✓' if is_so else '✗'} {what}")
    return 0 if all(found.values()) else 1


async def _editors(bench: Bench) -> list[Editor]:
    first = await bench.browser()
    creation = {"type": "create_canvas", "canvas": {"title": "A crowd"}}
    await first.change(CANVAS, creation, mutation_id="m")
    browsers = [first, *[await bench.window(first) for _ in range(WINDOWS - 1)]]
    return [Editor(name, browser) for name, browser in enumerate(browsers)]


async def _counted(bench: Bench, editors: list[Editor]) -> dict[str, bool]:
    """What has to be so, by the database and by a read."""
    connection = await asyncpg.connect(bench.database_url)
    try:
        head: Any = await connection.fetchrow(
            "SELECT * FROM canvas.canvas WHERE canvas_id = $1", CANVAS
        )
        changes = await connection.fetch(
            "SELECT revision, mutation_id FROM canvas.change WHERE canvas_key = $1", head["key"]
        )
        usage: Any = await connection.fetchrow("SELECT * FROM canvas.usage")
        sizes: int = await connection.fetchval(
            "SELECT (SELECT coalesce(sum(octet_length(body)), 0) FROM canvas.node)"
            " + (SELECT coalesce(sum(octet_length(body)), 0) FROM canvas.connection)"
        )
    finally:
        await connection.close()
    status, body = await editors[0].browser.ask("GET", f"/api/canvas-projects/{CANVAS}")
    assert status == 200
    canvas = json.loads(body)
    applied = {row["mutation_id"]: row["revision"] for row in changes}
    acknowledged = {"m": 1}
    nodes: dict[str, Node] = {}
    links: dict[str, Node] = {}
    for editor in editors:
        acknowledged |= editor.acknowledged
        nodes |= editor.nodes
        links |= editor.links
    return {
        f"acknowledged = applied, each once: {len(applied)}": applied == acknowledged,
        f"revisions are dense: 1 to {head['revision']}": sorted(applied.values())
        == list(range(1, head["revision"] + 1)),
        f"the canvas holds what the windows have: {len(nodes)} nodes, {len(links)} connections": (
            {node["id"]: node for node in canvas["nodes"]} == nodes
            and {link["id"]: link for link in canvas["connections"]} == links
        ),
        f"counters: {head['node_count']} nodes, {head['size_bytes']} bytes": (
            head["node_count"] == len(nodes)
            and usage["canvases"] == 1
            and usage["json_bytes"] == head["size_bytes"] == sizes + _size(head["fields"])
        ),
        f"the content hash is that of a recount: {canvas['contentHash']}": (
            canvas["contentHash"] == _hash(nodes, links, json.loads(head["fields"]))
        ),
    }


def _size(fields: str) -> int:
    return sum(len(canonical(value).encode()) for value in json.loads(fields).values())


def _hash(nodes: dict[str, Node], links: dict[str, Node], fields: dict[str, Any]) -> str:
    total = 0
    for kind, values in (("node", nodes), ("connection", links), ("field", fields)):
        for key, value in values.items():
            total ^= object_hash(kind, key, canonical(value))
    return hex_of(total)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]) if sys.argv[1:] else SECONDS)))
