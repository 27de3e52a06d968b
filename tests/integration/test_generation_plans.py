"""The plans of the generation service's statements, on tables that are empty and analysed."""

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from servicekit.postgres import INDEXES_ONLY
from services.generation import deliveries_store, leases_store, store, summaries_store, wallet_store

_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
STATEMENTS = {
    name: text
    for module in (store, leases_store, deliveries_store, summaries_store, wallet_store)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and text.strip().startswith(_VERBS)
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_finds_its_rows_by_an_index_even_planned_on_empty_tables(
    database: str, name: str
) -> None:
    """GN20"""
    connection = await asyncpg.connect(
        database, server_settings={**INDEXES_ONLY, "plan_cache_mode": "force_generic_plan"}
    )
    try:
        await connection.execute("ANALYZE")
        parameters = (await connection.prepare(STATEMENTS[name])).get_parameters()
        await connection.execute(f"PREPARE hot AS {STATEMENTS[name]}")
        nulls = ", ".join("NULL" for _ in parameters)
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({nulls})")
    finally:
        await connection.close()

    nodes = list(_nodes(json.loads(text)[0]["Plan"]))

    assert [node for node in nodes if node["Node Type"] == "Seq Scan"] == []
    assert [node for node in nodes if "Index Name" in node and "Index Cond" not in node] == []


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from _nodes(inner)
