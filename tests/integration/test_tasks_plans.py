"""How PostgreSQL runs the statements of the tasks service: by index, from the first day on."""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import asyncpg

from services.tasks import store, work_store
from services.tasks.domain.tasks import Choice

STATEMENTS = {
    name: statement
    for module in (store, work_store)
    for name, statement in vars(module).items()
    if name.isupper() and not name.startswith("_") and "\n" in str(statement)
} | {
    f"LIST_TASKS {choice}": store.list_tasks(choice)[0]
    for choice in (
        Choice(canvas_id=canvas_id, node_id=node_id, active_only=active_only)
        for canvas_id, node_id, active_only in product((None, "c"), (None, "n"), (False, True))
    )
}
# Walked in order, without a condition: it holds nothing but the accounts that have work.
WALKED = {"account_whose_turn_it_is"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def unindexed(plan: dict[str, Any]) -> list[str]:
    """What a plan reads without an index condition."""
    scans = [node for node in nodes(plan) if "Scan" in node["Node Type"]]
    return [node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"] + [
        node["Index Name"]
        for node in scans
        if "Index Name" in node and "Index Cond" not in node and node["Index Name"] not in WALKED
    ]


async def test_every_statement_finds_its_rows_by_an_index_condition(database: str) -> None:
    settings = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
    connection = await asyncpg.connect(database, server_settings=settings)
    wrong: dict[str, list[str]] = {}
    try:
        # The planner knows that the tables are empty, as after the first migration.
        await connection.execute("ANALYZE")
        for name, statement in STATEMENTS.items():
            await connection.execute(f"PREPARE statement AS {statement}")
            parameters = max(int(number) for number in re.findall(r"\$(\d+)", statement))
            nulls = ", ".join(["NULL"] * parameters)
            plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE statement ({nulls})")
            await connection.execute("DEALLOCATE statement")
            wrong[name] = unindexed(json.loads(plan)[0]["Plan"])
    finally:
        await connection.close()

    assert {name: found for name, found in wrong.items() if found} == {}


def test_the_statements_are_found() -> None:
    assert {"CLAIM_TASK", "APPEND_TEXT", "ADD_TASK", "READ_EVENTS"} <= STATEMENTS.keys()
    assert len(STATEMENTS) >= 24
