"""The queue beside procrastinate, PgQueuer and plain SQL: `python -m bench.queue`.

No-op jobs that show nothing on a canvas. Ours are claimed and completed over gRPC by a worker in
this process; peers run their own worker in a process of their own, on databases of their own of the
same PostgreSQL. Rates are medians of rounds in turn.
"""

import asyncio
import json
import os
import secrets
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import asyncpg
import psutil
import uvloop
from gesso.generation.v1 import generation_pb2 as pb
from gesso.generation.v1.generation_pb2_grpc import GenerationServiceStub
from gesso.wallet.v1 import wallet_pb2
from gesso.wallet.v1.wallet_pb2_grpc import WalletServiceStub
from google.protobuf.duration_pb2 import Duration

from bench.suite import Bench, an_account, bench_suite
from servicekit.client import Client
from servicekit.identity import Behalf
from servicekit.postgres import PLANNING, DatabaseSettings, connected
from servicekit.telemetry import Metrics, configure_logs
from services.generation import leases_store, store, turns_store
from services.generation.retention_store import RetentionStore
from services.generation.sweeper import Sweeper
from services.generation.wallet_store import WalletStore

ROUNDS = 3
JOBS = 10_000
SLOW_JOBS = 3_000
A_LIST = 25
IN_FLIGHT = 50
ACCOUNTS = 200
IDLE_SECONDS = 0.02
IDLE_JOBS = 200
ENQUEUED = 5_000
HELD_JOBS = 90_000
MANY = 1_000_000
RUNNING = 5_000
MANY_ACCOUNTS = 10_000

FOLDER = Path(__file__).parent / "peers" / "queues"
_PYTHON = FOLDER / ".venv" / "bin" / "python"
# Installed and locked apart: nothing of the product needs them.
_INSTALLED = FOLDER / ".venv" / "installed"

OUTPUT = pb.Output(resource_id="rs_1", asset_id="as_1", mime_type="image/png", width=1, height=1)
OUTPUTS = '[{"resource_id":"rs_1","asset_id":"as_1","mime_type":"image/png","width":1,"height":1}]'

# So many jobs of a status, of accounts in turn, that began a number of days ago. They came one
# after another, as jobs do: 10,000 a second.
SEED = """
WITH job AS (
    INSERT INTO generation.job
           (job_id, account_id, dedupe_key, kind, canvas_id, delivers, max_attempts, price_micros,
            status, attempt, worker_id, lease_until, lease_token, available_at)
    SELECT $1 || '-' || n, 'us_bench' || n % $3, $1 || '-' || n, 'editor_image_generation', 'c',
           false, 1, 1, $4, CASE $4 WHEN 'pending' THEN 0 ELSE 1 END,
           CASE $4 WHEN 'running' THEN 'w-' || n END,
           CASE $4 WHEN 'running' THEN now() + interval '1 day' END,
           CASE $4 WHEN 'pending' THEN 0 ELSE 1 END,
           now() - ($2 - n) * interval '100 microseconds'
      FROM generate_series(1, $2) AS n
    RETURNING key, job_id, account_id
), payload AS (
    INSERT INTO generation.payload (job_key, digest, params, position_x, position_y)
    SELECT key, '', '{}', 0, 0
      FROM job
), event AS (
    INSERT INTO generation.event (job_key, kind)
    SELECT key, 'enqueued'
      FROM job
)
INSERT INTO generation.summary
       (job_key, job_id, account_id, kind, source, label, status, phase, price_micros, canvas_id,
        created_at, started_at, ended_at)
SELECT key, job_id, account_id, 'editor_image_generation', 'editor-canvas', 'bench', $4,
       CASE $4 WHEN 'running' THEN 'generating' END, 1, 'c', now() - $5::interval,
       CASE WHEN $4 <> 'pending' THEN now() - $5::interval END,
       CASE $4 WHEN 'completed' THEN now() - $5::interval END
  FROM job
"""


@dataclass(frozen=True)
class Run:
    """Jobs a second, the median and the slowest hundredth of claims, and CPU of all a job."""

    rate: float
    claim_p50_ms: float
    claim_p99_ms: float
    cpu_micros: float

    def __str__(self) -> str:
        return (
            f"{self.rate:,.0f}/s · claim p50 {self.claim_p50_ms:.1f} ms, "
            f"p99 {self.claim_p99_ms:.1f} ms · {self.cpu_micros:.0f} µs of CPU a job"
        )


class Queue:
    """Our queue in one suite, and a worker of it."""

    def __init__(self, bench: Bench, client: Client) -> None:
        self.bench = bench
        self._client = client
        self._stub = GenerationServiceStub(client.channel)
        self._wallet = WalletServiceStub(client.channel)

    async def seed(
        self,
        count: int,
        *,
        accounts: int = ACCOUNTS,
        status: str = "pending",
        age: timedelta = timedelta(),
    ) -> None:
        """Stores so many jobs at once."""
        async with _database(self.bench) as connection:
            await connection.execute(
                "INSERT INTO generation.account SELECT 'us_bench' || n"
                "  FROM generate_series(0, $1::bigint - 1) AS n ON CONFLICT DO NOTHING",
                accounts,
            )
            await connection.execute(
                SEED, secrets.token_hex(6), count, accounts, status, age, timeout=600
            )
            await connection.execute("VACUUM ANALYZE", timeout=600)

    async def drain(self, *, jobs: int, size: int, loops: int) -> Run:
        """Claims and completes so many jobs, in lists of `size`, by so many loops at once."""
        lasted: list[float] = []
        left = jobs

        async def work(number: int) -> None:
            nonlocal left
            while left > 0:
                began = time.perf_counter()
                claimed = await self._claim(f"bench-{number}", size)
                lasted.append(time.perf_counter() - began)
                left -= len(claimed)
                if not claimed:
                    return
                await self._complete(f"bench-{number}", claimed)

        with _Cpu(self.bench) as cpu:
            began = time.perf_counter()
            await asyncio.gather(*(work(number) for number in range(loops)))
            seconds = time.perf_counter() - began
        assert left <= 0, f"{left} jobs were not there"
        return _run(jobs - left, seconds, lasted, cpu.seconds)

    async def latencies(self, count: int) -> list[float]:
        """Seconds from before a job is asked for until a worker has it, while all else is quiet."""
        account = an_account()
        grant = wallet_pb2.GrantRequest(amount_micros=10**12, reference=secrets.token_hex(8))
        await self._client.call(self._wallet.Grant, grant, account)
        found: list[float] = []
        for _ in range(count):
            claiming = asyncio.create_task(self._claim("idle", 1, wait=10))
            await asyncio.sleep(IDLE_SECONDS)
            asked = time.perf_counter()
            enqueueing = asyncio.create_task(
                self._client.call(self._stub.Enqueue, _order(secrets.token_hex(8)), account)
            )
            claimed = await claiming
            found.append(time.perf_counter() - asked)
            await enqueueing
            await self._complete("idle", claimed)
        return found

    async def enqueue(self, count: int) -> tuple[float, float]:
        """Jobs a second that are asked for in lists of 100, and the same ones once more."""
        lists = []
        for _ in range(count // 100):
            account = an_account()
            grant = wallet_pb2.GrantRequest(amount_micros=10**12, reference=secrets.token_hex(8))
            await self._client.call(self._wallet.Grant, grant, account)
            orders = [_order(secrets.token_hex(8)) for _ in range(100)]
            lists.append((account, pb.BatchEnqueueRequest(requests=orders)))
        rates = []
        for is_repeat in (False, True):
            began = time.perf_counter()
            for account, request in lists:
                answer = await self._client.call(self._stub.BatchEnqueue, request, account)
                assert {each.enqueued.replayed for each in answer.outcomes} == {is_repeat}
            rates.append(count / (time.perf_counter() - began))
        async with _database(self.bench) as connection:
            await connection.execute(
                "DELETE FROM generation.job WHERE status IN ('pending', 'waiting')"
            )
        return rates[0], rates[1]

    async def renew(self) -> tuple[float, float]:
        """Leases a second that are renewed, 50 a call, and transactions for each 50 of them."""
        async with _database(self.bench) as connection:
            rows = await connection.fetch(
                "SELECT job_id, worker_id, lease_token FROM generation.job WHERE status = 'running'"
            )
            # All of one worker, as a list of leases is.
            await connection.execute(
                "UPDATE generation.job SET worker_id = 'renewer' WHERE status = 'running'"
            )
            leases = [
                pb.Lease(job_id=row["job_id"], lease_token=row["lease_token"]) for row in rows
            ]
            before = await _transactions(connection)
            began = time.perf_counter()
            for start in range(0, len(leases), IN_FLIGHT):
                request = pb.RenewLeasesRequest(
                    worker_id="renewer",
                    leases=leases[start : start + IN_FLIGHT],
                    lease=Duration(seconds=600),
                )
                answer = await self._client.call(self._stub.RenewLeases, request, Behalf())
                assert set(answer.outcomes) == {pb.LEASE_OUTCOME_OK}
            seconds = time.perf_counter() - began
            after = await _transactions(connection)
        return len(leases) / seconds, (after - before) / (len(leases) / IN_FLIGHT)

    async def _claim(self, worker_id: str, limit: int, wait: int = 0) -> list[pb.ClaimedJob]:
        request = pb.ClaimRequest(
            worker_id=worker_id,
            claim_id=secrets.token_hex(8),
            limit=limit,
            lease=Duration(seconds=600),
            wait=Duration(seconds=wait),
        )
        answer = await self._client.call(self._stub.Claim, request, Behalf(), seconds=30)
        return list(answer.jobs)

    async def _complete(self, worker_id: str, jobs: list[pb.ClaimedJob]) -> None:
        completions = [
            pb.Completion(
                lease=pb.Lease(job_id=job.job_id, lease_token=job.lease_token), outputs=[OUTPUT]
            )
            for job in jobs
        ]
        request = pb.CompleteRequest(worker_id=worker_id, completions=completions)
        answer = await self._client.call(self._stub.Complete, request, Behalf(), seconds=30)
        assert set(answer.outcomes) == {pb.LEASE_OUTCOME_OK}


class _Cpu:
    """The CPU seconds that this process, our service and PostgreSQL spend inside the block."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._before = self._spent()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._spent() - self._before

    def _spent(self) -> float:
        postgres = psutil.Process(self._bench.pids["postgres"])
        family = [postgres, *postgres.children(recursive=True)]
        family += [psutil.Process(), psutil.Process(self._bench.pids["generation"])]
        spent = 0.0
        for process in family:
            # One that cleans up comes and goes.
            with suppress(psutil.NoSuchProcess):
                spent += sum(process.cpu_times()[:2])
        return spent


def _run(jobs: int, seconds: float, lasted: list[float], cpu: float) -> Run:
    ordered = sorted(lasted)
    return Run(
        rate=jobs / seconds,
        claim_p50_ms=1000 * statistics.median(ordered),
        claim_p99_ms=1000 * ordered[int(0.99 * (len(ordered) - 1))],
        cpu_micros=1e6 * cpu / jobs,
    )


def _order(key: str) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(
        dedupe_key=key,
        kind="editor_image_generation",
        params=b'{"prompt":"a lantern"}',
        canvas_id="c",
    )


@asynccontextmanager
async def _database(bench: Bench) -> Any:
    connection = await asyncpg.connect(bench.database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def _transactions(connection: Any) -> int:
    await connection.execute("SELECT pg_stat_force_next_flush()")
    # What other sessions did is there once they were idle for a moment.
    await asyncio.sleep(1.5)
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    count: int = await connection.fetchval(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    )
    return count


async def floor_lists(bench: Bench, jobs: int) -> Run:
    """Our own statements on plain connections, in lists of 25, by two loops."""
    lasted: list[float] = []
    left = jobs
    names = [channel.name for channel in store.EVERYWHERE]

    async def work(connection: Any, worker_id: str) -> None:
        nonlocal left
        claim = await connection.prepare(store.CLAIM)
        complete = await connection.prepare(leases_store.COMPLETE)
        waiting = await connection.prepare(turns_store.READ_WAITING)
        while left > 0:
            began = time.perf_counter()
            rows = await claim.fetch(
                [worker_id],
                [secrets.token_hex(8)],
                [A_LIST],
                [timedelta(minutes=10)],
                names,
                [None] * len(names),
                [store.EVER] * len(names),
            )
            lasted.append(time.perf_counter() - began)
            rows = [row for row in rows if row["key"] is not None]
            left -= len(rows)
            if not rows:
                return
            count = len(rows)
            await complete.fetch(
                [worker_id] * count,
                [row["job_id"] for row in rows],
                [row["lease_token"] for row in rows],
                [OUTPUTS] * count,
                [None] * count,
            )
            await waiting.fetch([row["account_id"] for row in rows])

    connections = [
        await asyncpg.connect(bench.database_url, server_settings=PLANNING) for _ in range(2)
    ]
    try:
        with _Cpu(bench) as cpu:
            began = time.perf_counter()
            await asyncio.gather(
                *(work(each, f"floor-{number}") for number, each in enumerate(connections))
            )
            seconds = time.perf_counter() - began
    finally:
        for each in connections:
            await each.close()
    assert left <= 0
    return _run(jobs - left, seconds, lasted, cpu.seconds)


async def floor_latencies(bench: Bench, count: int) -> list[float]:
    """The same by LISTEN, on plain connections and without a service."""
    names = [channel.name for channel in store.EVERYWHERE]
    found: list[float] = []
    async with _database(bench) as asking, _database(bench) as working:
        claim = await working.prepare(store.CLAIM)
        heard = asyncio.Event()
        await working.add_listener("bench_jobs", lambda *_: heard.set())
        await asking.execute("INSERT INTO generation.account VALUES ('us_floor', 10 ^ 12)")
        for number in range(count):
            await asyncio.sleep(IDLE_SECONDS)
            heard.clear()
            asked = time.perf_counter()

            async def ask(number: int = number) -> None:
                async with asking.transaction():
                    balance = await asking.fetchval(
                        "SELECT balance_micros FROM generation.account"
                        " WHERE account_id = 'us_floor' FOR UPDATE"
                    )
                    await asking.fetch(store.GATHER, "us_floor", [str(number)])
                    await asking.fetch(
                        store.ENQUEUE, "us_floor", balance, *_columns(f"floor-{number}", number)
                    )
                    await asking.execute("NOTIFY bench_jobs")

            asking_now = asyncio.create_task(ask())
            await heard.wait()
            rows = await claim.fetch(
                ["floor"],
                [secrets.token_hex(8)],
                [1],
                [timedelta(minutes=10)],
                names,
                [None] * len(names),
                [store.EVER] * len(names),
            )
            found.append(time.perf_counter() - asked)
            await asking_now
            await working.fetch(
                leases_store.COMPLETE,
                ["floor"],
                [rows[0]["job_id"]],
                [rows[0]["lease_token"]],
                [OUTPUTS],
                [None],
            )
    return found


def _columns(job_id: str, number: int) -> list[list[Any]]:
    values = [
        job_id, str(number), "editor_image_generation", "c", None, False, 1, 1, "studio", 0,
        "pending", b"", "{}", 0.0, 0.0, "bench",
    ]  # fmt: skip
    return [[value] for value in values]


async def peer(bench: Bench, name: str, what: str, count: int) -> Any:
    """What a peer comes to, on a database of its own."""
    database = f"peer_{secrets.token_hex(4)}"
    async with _database(bench) as connection:
        await connection.execute(f"CREATE DATABASE {database}")
    url = bench.database_url.replace("/gesso?", f"/{database}?")
    process = await asyncio.create_subprocess_exec(
        _PYTHON, FOLDER / "load.py", name, url, what, str(count), stdout=PIPE, stderr=PIPE
    )
    said, complained = await process.communicate()
    if process.returncode:
        raise ChildProcessError(complained.decode()[-2000:])
    async with _database(bench) as connection:
        await connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    return json.loads(said)


async def install() -> None:
    """Brings the locked peers to an environment of their own."""
    lock = FOLDER / "requirements.lock"
    if _INSTALLED.exists() and _INSTALLED.stat().st_mtime >= lock.stat().st_mtime:
        return
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", FOLDER / ".venv"],
        [_PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock],
    ]
    for command in commands:
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait():
            raise ChildProcessError("the peers could not be installed")
    _INSTALLED.touch()


async def main() -> None:
    """Measures everything, and prints tables."""
    configure_logs("bench", "warning")
    await install()
    environ = {
        "GESSO_GENERATION_BACKLOG_LIMIT": "1000000",
        "GESSO_GENERATION_SWEEP_SECONDS": "86400",
    }
    async with (
        bench_suite(workers=0, environ=environ) as bench,
        bench.client("generation") as client,
    ):
        queue = Queue(bench, client)
        await _rates(bench, queue)
        await _latencies(bench, queue)
        await _enqueues(bench, queue)
        await _held(bench, queue)
        await _growth(queue)
    async with (
        bench_suite(workers=0, environ=environ) as bench,
        bench.client("generation") as client,
    ):
        await _pruning(bench, Queue(bench, client))


async def _rates(bench: Bench, queue: Queue) -> None:
    lists: list[Run] = []
    singles: list[Run] = []
    floors: list[Run] = []
    pgqueuer: list[float] = []
    procrastinate: list[float] = []
    for _ in range(ROUNDS):
        await queue.seed(JOBS)
        lists.append(await queue.drain(jobs=JOBS, size=A_LIST, loops=IN_FLIGHT // A_LIST))
        await queue.seed(JOBS)
        floors.append(await floor_lists(bench, JOBS))
        pgqueuer.append(JOBS / await peer(bench, "pgqueuer", "rate", JOBS))
        procrastinate.append(SLOW_JOBS / await peer(bench, "procrastinate", "rate", SLOW_JOBS))
        await queue.seed(SLOW_JOBS)
        singles.append(await queue.drain(jobs=SLOW_JOBS, size=1, loops=IN_FLIGHT))
    ours, floor = _middle(lists), _middle(floors)
    slow, fast = statistics.median(procrastinate), statistics.median(pgqueuer)
    single = _middle(singles)
    print(f"ours, lists of {A_LIST}, {IN_FLIGHT} in flight: {ours}")
    print(f"floor, the same statements on plain connections: {floor}")
    print(f"PgQueuer: {fast:,.0f}/s; procrastinate: {slow:,.0f}/s")
    print(f"ours, one job a call: {single}")
    print(f"lists / procrastinate {ours.rate / slow:.1f} (≥ 10)")
    print(f"lists / PgQueuer {ours.rate / fast:.2f} (≥ 0.75)")
    print(f"lists / floor {ours.rate / floor.rate:.2f} (≥ 0.5)")
    print(f"one a call / procrastinate {single.rate / slow:.1f} (≥ 3)", flush=True)


async def _latencies(bench: Bench, queue: Queue) -> None:
    ours = await queue.latencies(IDLE_JOBS)
    floor = await floor_latencies(bench, IDLE_JOBS)
    theirs = await peer(bench, "procrastinate", "latency", IDLE_JOBS)
    faster = await peer(bench, "pgqueuer", "latency", IDLE_JOBS)
    for name, found in (
        ("ours, over gRPC", ours),
        ("plain LISTEN and our statements", floor),
        ("procrastinate", theirs),
        ("PgQueuer", faster),
    ):
        print(f"idle, asked for until begun, {name}: {_p(found, 50):.1f} / {_p(found, 99):.1f} ms")
    print(
        f"p50 / procrastinate's {_p(ours, 50) / _p(theirs, 50):.2f} (≤ 1), "
        f"p99 {_p(ours, 99) / _p(theirs, 99):.2f} (≤ 0.5), "
        f"p50 / floor {_p(ours, 50) / _p(floor, 50):.2f} (≤ 2)",
        flush=True,
    )


async def _enqueues(bench: Bench, queue: Queue) -> None:
    rounds = [await queue.enqueue(ENQUEUED) for _ in range(ROUNDS)]
    theirs = [
        ENQUEUED / await peer(bench, "procrastinate", "enqueue", ENQUEUED) for _ in range(ROUNDS)
    ]
    fresh = statistics.median(rate for rate, _ in rounds)
    again = statistics.median(rate for _, rate in rounds)
    slow = statistics.median(theirs)
    one = SLOW_JOBS / await peer(bench, "procrastinate", "single", SLOW_JOBS)
    print(f"asked for in lists of 100: {fresh:,.0f}/s; the same again: {again:,.0f}/s")
    print(f"procrastinate, in lists of 100: {slow:,.0f}/s; one at a time: {one:,.0f}/s")
    print(
        f"/ procrastinate in lists {fresh / slow:.1f} (≥ 4), one at a time {fresh / one:.1f}, "
        f"again / fresh {again / fresh:.1f} (≥ 0.5)",
        flush=True,
    )


async def _held(bench: Bench, queue: Queue) -> None:
    tenth = HELD_JOBS // 10
    await queue.seed(tenth)
    clean = await queue.drain(jobs=tenth, size=A_LIST, loops=2)
    async with _database(bench) as other, other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT 1")
        await queue.seed(HELD_JOBS - tenth)
        await queue.drain(jobs=HELD_JOBS - tenth, size=A_LIST, loops=2)
        await queue.seed(tenth)
        held = await queue.drain(jobs=tenth, size=A_LIST, loops=2)
    theirs = await peer(bench, "pgqueuer", "held", HELD_JOBS)
    print(f"a snapshot held through {HELD_JOBS:,} jobs: {held}; clean {clean}")
    theirs_kept = theirs["clean"] / theirs["held"]
    print(
        f"held / clean {held.rate / clean.rate:.2f} (≥ 0.8); PgQueuer {theirs_kept:.2f}",
        flush=True,
    )


async def _growth(queue: Queue) -> None:
    async def measured(name: str, accounts: int = ACCOUNTS) -> Run:
        runs = []
        for _ in range(ROUNDS):
            await queue.seed(JOBS, accounts=accounts)
            runs.append(await queue.drain(jobs=JOBS, size=A_LIST, loops=2))
        run = _middle(runs)
        print(f"{name}: {run}", flush=True)
        return run

    base = await measured("few finished rows")
    more = await measured("10,000 accounts", accounts=MANY_ACCOUNTS)
    await queue.seed(RUNNING, status="running")
    busy = await measured("5,000 running")
    rate, updates = await queue.renew()
    print(f"renewing 5,000, 50 a call: {rate:,.0f} leases/s, {updates:.1f} transactions a call")
    await queue.seed(MANY, status="completed", age=timedelta(days=40))
    old = await measured("1,000,000 finished rows")
    await queue.seed(MANY)
    full = await measured("1,000,000 pending")
    for name, run in (
        ("10,000 accounts", more),
        ("5,000 running", busy),
        ("1,000,000 finished", old),
        ("1,000,000 pending", full),
    ):
        print(
            f"{name} / few: claim p50 {run.claim_p50_ms / base.claim_p50_ms:.2f}, "
            f"CPU a job {run.cpu_micros / base.cpu_micros:.2f} (≤ 1.15)"
        )


async def _pruning(bench: Bench, queue: Queue) -> None:
    """Claims while a million jobs of long ago are forgotten, with what belongs to them."""
    await queue.seed(MANY, status="completed", age=timedelta(days=40))
    await queue.seed(JOBS)
    before = await queue.drain(jobs=JOBS, size=A_LIST, loops=2)
    settings = DatabaseSettings(database_url=bench.database_url, statement_seconds=60)
    async with connected(settings, application="bench") as database:
        sweeper = Sweeper(
            RetentionStore(database), WalletStore(database), Metrics(), age=timedelta(days=30)
        )
        await queue.seed(JOBS)
        began = time.perf_counter()
        forgetting = asyncio.create_task(sweeper.through(sweeper.forget_jobs))
        run = await queue.drain(jobs=JOBS, size=A_LIST, loops=2)
        is_over = forgetting.done()
        await forgetting
        seconds = time.perf_counter() - began
    print(f"claims before: {before}")
    print(f"claims while {MANY:,} jobs are forgotten: {run}")
    print(f"p99 / before {run.claim_p99_ms / before.claim_p99_ms:.2f} (≤ 2)")
    print(f"all were forgotten after {seconds:.0f} s; it was over by the last claim: {is_over}")


def _middle(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


def _p(found: list[float], percent: int) -> float:
    ordered = sorted(found)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    os.environ.pop("GESSO_DATABASE_URL", None)
    uvloop.run(main())
