"""The plans of all statements, on tables that are empty and analysed."""

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from gateway import accounts_store
from servicekit.postgres import PLANNING
from services.canvas import assets_store
from services.canvas import store as canvas_store
from services.generation import (
    calls_store,
    deliveries_store,
    leases_store,
    retention_store,
    stats_store,
    summaries_store,
    turns_store,
    wallet_store,
    workers_store,
)
from services.generation import store as generation_store
from services.tasks import store as tasks_store
from services.tasks import work_store

# These hold nothing but what is asked for, in its order: they are read from their beginning.
READ_FROM_THE_FIRST = {"account_without_grant", "account_whose_turn_it_is"}
READS_WHOLE_CANVASES = {"services.canvas.store.READ_CANVAS"}
_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
MODULES = (
    accounts_store,
    canvas_store,
    assets_store,
    tasks_store,
    work_store,
    generation_store,
    calls_store,
    leases_store,
    deliveries_store,
    retention_store,
    summaries_store,
    turns_store,
    wallet_store,
    stats_store,
    workers_store,
)
STATEMENTS = {
    f"{module.__name__}.{name}": text
    for module in MODULES
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and text.strip().startswith(_VERBS)
}

FIRST_COLUMNS = """
SELECT relname, pg_get_indexdef(oid, 1, false)
  FROM pg_class
 WHERE relkind = 'i'
"""


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_finds_its_rows_by_an_index_even_planned_on_empty_tables(
    database: str, name: str
) -> None:
    """GN20, CV25"""
    connection = await asyncpg.connect(database, server_settings=PLANNING)
    try:
        await connection.execute("ANALYZE")
        parameters = (await connection.prepare(STATEMENTS[name])).get_parameters()
        await connection.execute(f"PREPARE hot AS {STATEMENTS[name]}")
        nulls = ", ".join("NULL" for _ in parameters)
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({nulls})")
        first = {row[0]: row[1] for row in await connection.fetch(FIRST_COLUMNS)}
    finally:
        await connection.close()

    nodes = list(_nodes(json.loads(text)[0]["Plan"]))

    assert [node for node in nodes if node["Node Type"] == "Seq Scan"] == []
    found = [node for node in nodes if "Index Name" in node]
    # An index whose first column is not asked for is read in as many places as that has values.
    assert [
        (node["Index Name"], node.get("Index Cond"))
        for node in found
        if first[node["Index Name"]] not in node.get("Index Cond", "")
        and node["Index Name"] not in READ_FROM_THE_FIRST
    ] == []
    # By its canvas alone a connection is found after all others.
    assert name in READS_WHOLE_CANVASES or not [
        node
        for node in found
        if node["Index Name"].startswith("connection_") and " AND " not in node["Index Cond"]
    ]


async def test_the_queue_is_counted_of_indexes_alone(database: str) -> None:
    """GN40"""
    nodes = await planned(database, stats_store.COUNT_QUEUE)

    scans = [node["Node Type"] for node in nodes if "Relation Name" in node]
    assert scans == ["Index Only Scan"] * 5


async def planned(database: str, statement: str) -> list[dict[str, Any]]:
    """The parts of the plan of a statement, made without knowing its parameters."""
    connection = await asyncpg.connect(database, server_settings=PLANNING)
    try:
        await connection.execute("ANALYZE")
        parameters = (await connection.prepare(statement)).get_parameters()
        await connection.execute(f"PREPARE hot AS {statement}")
        nulls = ", ".join("NULL" for _ in parameters)
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({nulls})")
    finally:
        await connection.close()
    return list(_nodes(json.loads(text)[0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from _nodes(inner)
