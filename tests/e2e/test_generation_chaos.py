"""The queue with real processes that are killed, frozen and restarted, and its history after."""

import asyncio
import os
import secrets
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from tests.support.suite import Up, start, stop, until

JOBS = 40
ROUNDS = 16
# Longer than a lease, shorter than a test.
FROZEN_SECONDS = 4.0
ENDS = {"completed": "success", "failed": "error", "cancelled": "idle"}
ENVIRON = {
    "GESSO_GENERATION_WORKER_LEASE_SECONDS": "3",
    "GESSO_GENERATION_RUNNING_LIMIT": "8",
    "GESSO_GENERATION_DELIVERY_LEASE_SECONDS": "2",
}
WORKER_OF_ACCEPTED = """
SELECT worker_id
  FROM generation.job
 WHERE job_id = $1
   AND EXISTS (SELECT FROM generation.provider_call WHERE job_key = key AND request_id IS NOT NULL)
"""
DIRECTIONS = ("", "", "", "!slow=0.5", "!slow=2", "!429=1", "!fail", "!cut")


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A suite with two workers and short leases."""
    up = start(tmp_path_factory.mktemp("chaos") / "var", "--workers", "2", environ=ENVIRON)
    yield up
    stop(up)


class Story:
    """An account, its canvas, and what it ordered."""

    def __init__(self, up: Up, client: httpx.AsyncClient) -> None:
        self.up = up
        self.client = client
        self.canvas_id = f"cv_{secrets.token_hex(4)}"
        self.job_ids: dict[str, str] = {}

    async def begin(self, count: int) -> None:
        """Signs up, and makes a canvas with so many placeholders."""
        body = {
            "email": f"{secrets.token_hex(8)}@example.com",
            "password": "correct horse battery",
        }
        assert (await self.client.post("/api/auth/register", json=body)).status_code == 201
        nodes = [
            {"id": f"n{number}", "type": "config", "position": {"x": 0, "y": number}}
            for number in range(count)
        ]
        change = {
            "mutationId": "begin",
            "baseRevision": 0,
            "operations": [
                {"type": "create_canvas", "canvas": {"title": "Chaos"}},
                *({"type": "create_node", "node": node} for node in nodes),
            ],
        }
        await self.insistent(
            "PATCH", f"/api/canvas-projects/{self.canvas_id}/operations", json=change
        )

    async def order(self, node_id: str, directions: str) -> str:
        """Orders a picture for a placeholder, however often it has to be asked."""
        answer = await self.insistent(
            "POST",
            f"/api/canvas-projects/{self.canvas_id}/generations",
            json={
                "kind": "editor_image_generation",
                "params": {"prompt": f"a lantern {directions}", "size": "64x64"},
                "canvasCompletion": {"placeholderNodeId": node_id},
            },
            headers={"Idempotency-Key": f"{self.canvas_id}-{node_id}"},
        )
        job_id: str = answer.json()["operation"]["operationId"]
        self.job_ids[node_id] = job_id
        return job_id

    async def insistent(self, method: str, path: str, **request: Any) -> httpx.Response:
        """An answer that is not that somebody is away; the request may be repeated."""
        async with asyncio.timeout(60):
            while True:
                with suppress(httpx.HTTPError):
                    answer = await self.client.request(method, path, **request)
                    if answer.status_code < 500:
                        assert answer.status_code < 400 or answer.status_code == 409, answer.text
                        return answer
                await asyncio.sleep(0.1)

    async def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs of the account as it sees them."""
        answer = await self.insistent(
            "GET", "/api/runtime/external-generation/jobs", params={"limit": "200"}
        )
        return {job["jobId"]: job for job in answer.json()["jobs"]}

    async def over(self) -> dict[str, dict[str, Any]]:
        """The jobs, once all of them are over."""
        async with asyncio.timeout(120):
            while True:
                jobs = await self.jobs()
                if all(job["status"] in ENDS for job in jobs.values()):
                    return jobs
                await asyncio.sleep(0.2)

    def pid(self, name: str) -> int | None:
        """The process of a name, if it runs now."""
        return next((each["pid"] for each in self.up.ps() if each["name"] == name), None)

    def signal(self, name: str, what: signal.Signals) -> int | None:
        """Sends a signal to a process by its name; which process that was."""
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, what)
        return pid

    async def database(self) -> asyncpg.Connection:
        """A connection to the database of the suite."""
        pid = self.pid("generation")
        assert pid is not None
        url = psutil.Process(pid).environ()["GESSO_DATABASE_URL"]
        return await asyncpg.connect(url)


async def _in_peace(story: Story) -> None:
    """Until what was killed is back, and nothing is on its way to a canvas."""
    await asyncio.to_thread(until, story.up.is_well)
    connection = await story.database()
    try:
        async with asyncio.timeout(60):
            while await connection.fetchval(
                "SELECT count(*) FROM generation.job WHERE deliver_at IS NOT NULL"
            ):
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def _shake(story: Story, random: Random) -> None:
    """Kills, freezes and cancels, one after another."""
    frozen: list[tuple[int, float]] = []
    loop = asyncio.get_running_loop()
    for _ in range(ROUNDS):
        await asyncio.sleep(random.uniform(0.2, 0.9))
        match random.randrange(7):
            case 0 | 1:
                story.signal(f"generation-worker-{random.randint(1, 2)}", signal.SIGKILL)
            case 2:
                name = f"generation-worker-{random.randint(1, 2)}"
                pid = story.signal(name, signal.SIGSTOP)
                if pid is not None:
                    frozen.append((pid, loop.time() + FROZEN_SECONDS))
            case 3:
                story.signal("generation", signal.SIGKILL)
            case 4:
                story.signal("canvas", signal.SIGKILL)
            case 5:
                story.signal("postgres", signal.SIGKILL)
            case 6:
                job_id = random.choice(list(story.job_ids.values()) or ["none"])
                with suppress(httpx.HTTPError):
                    await story.client.post(
                        f"/api/runtime/external-generation/jobs/{job_id}/cancel"
                    )
        for pid, until_time in list(frozen):
            if loop.time() >= until_time:
                _wake(pid)
                frozen.remove((pid, until_time))
    for pid, until_time in frozen:
        await asyncio.sleep(max(0.0, until_time - loop.time()))
        _wake(pid)


def _wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def _check_history(story: Story, jobs: dict[str, dict[str, Any]]) -> None:
    """What was recorded is what one careful process would have done."""
    connection = await story.database()
    try:
        ids = list(jobs)
        ledger = await connection.fetch(
            "SELECT kind, split_part(reference, ':', 2) AS job_id, account_id"
            "  FROM generation.ledger WHERE split_part(reference, ':', 2) = ANY($1)",
            ids,
        )
        events = await connection.fetch(
            "SELECT job_id, event.kind, event.lease_token, detail FROM generation.event AS event"
            " JOIN generation.job AS job ON job.key = job_key WHERE job_id = ANY($1)"
            " ORDER BY event.key",
            ids,
        )
        adds_up = await connection.fetchval(
            "SELECT balance_micros = (SELECT sum(delta_micros) FROM generation.ledger AS entry"
            " WHERE entry.account_id = account.account_id) FROM generation.account AS account"
            " WHERE account_id = $1",
            ledger[0]["account_id"],
        )
    finally:
        await connection.close()
    entries = Counter((entry["job_id"], entry["kind"]) for entry in ledger)
    history = defaultdict(list)
    for event in events:
        history[event["job_id"]].append(event)
    assert adds_up
    for job_id, job in jobs.items():
        kinds = Counter(event["kind"] for event in history[job_id])
        tokens = [e["lease_token"] for e in history[job_id] if e["kind"] == "claimed"]
        is_made = job["status"] == "completed"
        assert entries[job_id, "charge"] == 1
        assert entries[job_id, "refund"] == (0 if is_made else 1)
        assert kinds["completed"] + kinds["failed"] + kinds["cancelled"] == 1, job
        assert kinds["result_stored"] <= 1
        assert tokens == sorted(set(tokens))
        assert _askings(history[job_id]) <= 1, history[job_id]


def _askings(history: list[Any]) -> int:
    """How many attempts asked the provider, without it having said that it did nothing."""
    askings: set[int] = set()
    for event in history:
        if event["kind"] == "provider_called":
            askings.add(event["lease_token"])
        elif event["kind"] == "provider_settled" and " failed " in f"{event['detail']} ":
            askings.clear()
    return len(askings)


async def test_whatever_is_killed_or_frozen_each_job_ends_once_and_the_money_adds_up(
    shaken: Up,
) -> None:
    """GN9, GN11, GN14, GN27, GN30"""
    seed = secrets.randbits(32)
    random = Random(seed)
    async with httpx.AsyncClient(
        base_url=shaken.url, headers={"Origin": shaken.url}, timeout=15
    ) as client:
        story = Story(shaken, client)
        await story.begin(JOBS)

        async def order_all() -> None:
            for number in range(JOBS):
                await story.order(f"n{number}", random.choice(DIRECTIONS))
                await asyncio.sleep(random.uniform(0, 0.3))

        await asyncio.gather(order_all(), _shake(story, Random(seed + 1)))
        jobs = await story.over()
        await _in_peace(story)

        canvas = (await story.insistent("GET", f"/api/canvas-projects/{story.canvas_id}")).json()
        assert len(jobs) == JOBS, seed
        await _check_history(story, jobs)
        nodes = {node["id"]: node for node in canvas["nodes"]}
        assert len(nodes) == JOBS, seed
        for node_id, job_id in story.job_ids.items():
            metadata, status = nodes[node_id]["metadata"], jobs[job_id]["status"]
            assert metadata["status"] == ENDS[status], (seed, node_id, jobs[job_id])
            assert ("storageKey" in metadata) is (status == "completed"), (seed, node_id)
        assert Counter(job["status"] for job in jobs.values())["completed"] > 0, seed


async def test_a_worker_that_was_frozen_past_its_lease_changes_nothing_when_it_wakes(
    shaken: Up,
) -> None:
    """GN7"""
    async with httpx.AsyncClient(
        base_url=shaken.url, headers={"Origin": shaken.url}, timeout=15
    ) as client:
        story = Story(shaken, client)
        await story.begin(1)
        job_id = await story.order("n0", "!slow=3")
        connection = await story.database()
        try:
            async with asyncio.timeout(30):
                while not (worker := await connection.fetchval(WORKER_OF_ACCEPTED, job_id)):
                    await asyncio.sleep(0.02)
            pid = int(worker.rpartition("-")[2])
            os.kill(pid, signal.SIGSTOP)
            try:
                jobs = await story.over()
            finally:
                os.kill(pid, signal.SIGCONT)
            await _in_peace(story)
            before = await _stored(connection, job_id)
            await asyncio.to_thread(until, lambda: _is_told_of_its_loss(shaken, job_id))

            assert await _stored(connection, job_id) == before
        finally:
            await connection.close()
        await _check_history(story, jobs)


def _is_told_of_its_loss(up: Up, job_id: str) -> bool:
    """Whether a worker has heard that the job is not its own any more."""
    lines = [
        line
        for log in (up.data / "logs").glob("generation-worker-*")
        for line in log.read_text().splitlines()
    ]
    return any(job_id in line and ("lease lost" in line or "fenced" in line) for line in lines)


async def _stored(connection: asyncpg.Connection, job_id: str) -> list[Any]:
    rows = await connection.fetch(
        "SELECT job.*, summary.*, (SELECT count(*) FROM generation.event WHERE job_key = job.key)"
        "  FROM generation.job AS job JOIN generation.summary AS summary ON job_key = key"
        " WHERE job.job_id = $1",
        job_id,
    )
    return [tuple(row) for row in rows]
