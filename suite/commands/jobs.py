"""`gesso jobs`: calls of paid providers whose outcome nobody knows."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from gesso.generation.v1 import provider_calls_pb2 as pb
from gesso.generation.v1.provider_calls_pb2_grpc import ProviderCallServiceStub
from rich.console import Console
from rich.table import Table

from servicekit import client
from servicekit.client import Client
from servicekit.errors import Failure
from servicekit.identity import Behalf
from servicekit.settings import ServiceSettings, WrongSettings, load, setting
from servicekit.times import rfc3339, time_from_timestamp
from suite.state import StateFile

FAILED = 1
PAGE_SIZE = 200

OUTCOMES = {
    "succeeded": pb.PROVIDER_OUTCOME_SUCCEEDED,
    "failed": pb.PROVIDER_OUTCOME_FAILED,
    "cancelled": pb.PROVIDER_OUTCOME_CANCELLED,
}


class OperatorSettings(ServiceSettings, frozen=True, kw_only=True):
    """What an operator's command must know."""

    generation_address: Annotated[
        str, setting("Where generation is.", example="dns:///gesso-generation:50053", shared=True)
    ]


def run_uncertain(data_folder: Path, *, as_json: bool) -> int:
    """Lists the calls whose outcome nobody knows; returns the exit code."""
    try:
        calls = asyncio.run(_uncertain(data_folder))
    except (Failure, WrongSettings) as error:
        sys.stderr.write(f"gesso jobs uncertain: {error}\n")
        return FAILED
    if as_json:
        sys.stdout.write(json.dumps([_json(call) for call in calls]) + "\n")
    elif not calls:
        sys.stdout.write("no call of a provider is uncertain\n")
    else:
        _print(calls)
    return 0


def run_resolve(data_folder: Path, job_id: str, number: int, outcome: str, note: str) -> int:
    """Takes note of an outcome that was found out; returns the exit code."""
    try:
        asyncio.run(_resolve(data_folder, job_id, number, outcome, note))
    except (Failure, WrongSettings) as error:
        sys.stderr.write(f"gesso jobs resolve: {error}\n")
        return FAILED
    sys.stdout.write(f"call {number} of {job_id} {outcome}\n")
    return 0


async def _uncertain(data_folder: Path) -> list[pb.UncertainCall]:
    calls: list[pb.UncertainCall] = []
    token = ""
    async with _generation(data_folder) as generation:
        stub = ProviderCallServiceStub(generation.channel)
        while True:
            request = pb.ListUncertainCallsRequest(page_size=PAGE_SIZE, page_token=token)
            page = await generation.call(stub.ListUncertainCalls, request, Behalf())
            calls += page.calls
            token = page.next_page_token
            if not token:
                return calls


async def _resolve(data_folder: Path, job_id: str, number: int, outcome: str, note: str) -> None:
    async with _generation(data_folder) as generation:
        stub = ProviderCallServiceStub(generation.channel)
        request = pb.ResolveCallRequest(
            job_id=job_id, number=number, outcome=OUTCOMES[outcome], note=note
        )
        await generation.call(stub.ResolveCall, request, Behalf())


@asynccontextmanager
async def _generation(data_folder: Path) -> AsyncIterator[Client]:
    """The generation service that the environment names, or that of the suite on a folder."""
    settings = load(OperatorSettings, "jobs", {**_suite(data_folder), **os.environ})
    async with client.connected(
        settings.generation_address, caller="operator", tokens=settings.internal_tokens.split(",")
    ) as generation:
        yield generation


def _suite(data_folder: Path) -> Mapping[str, str]:
    """The settings of a suite that runs on a folder, none if none does."""
    processes = {process.name: process for process in StateFile(data_folder).read() or ()}
    if "generation" not in processes:
        return {}
    return {
        "GESSO_GENERATION_ADDRESS": processes["generation"].address,
        "GESSO_INTERNAL_TOKENS": (data_folder / "internal-token").read_text(),
    }


def _json(call: pb.UncertainCall) -> dict[str, object]:
    return {
        "jobId": call.job_id,
        "number": call.number,
        "accountId": call.account_id,
        "model": call.model,
        "requestId": call.request_id if call.HasField("request_id") else None,
        "beganAt": rfc3339(time_from_timestamp(call.begin_time)),
    }


def _print(calls: list[pb.UncertainCall]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "call", "account", "model", "provider's id", "began"):
        table.add_column(column, overflow="fold")
    for call in calls:
        began = rfc3339(time_from_timestamp(call.begin_time))
        table.add_row(
            call.job_id, str(call.number), call.account_id, call.model, call.request_id, began
        )
    Console(highlight=False, markup=False).print(table)
