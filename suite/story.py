"""The story that `gesso demo` plays: sign up, two windows, a text, a picture on the canvas."""

import asyncio
import io
import json
import re
import secrets
import unicodedata
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from websockets.asyncio.client import ClientConnection, connect

ANSWER_SECONDS = 20.0
STORY_SECONDS = 180.0
POLL_SECONDS = 0.3


class WentWrong(Exception):  # noqa: N818 - facts are named without a suffix
    """The story did not go as it should; one sentence that says where."""


class Window:
    """One browser window of the account: requests, and the canvas's socket."""

    def __init__(self, client: httpx.AsyncClient, socket: ClientConnection, canvas_id: str) -> None:
        self._client = client
        self._socket = socket
        self._path = f"/api/canvas-projects/{canvas_id}"

    async def change(self, *operations: dict[str, Any]) -> httpx.Response:
        """Sends operations under a mutation id of their own."""
        body = {
            "mutationId": secrets.token_hex(8),
            "baseRevision": 0,
            "operations": list(operations),
        }
        return await self._client.patch(f"{self._path}/operations", json=body)

    async def canvas(self) -> dict[str, Any]:
        """Reads the canvas."""
        found: dict[str, Any] = _answer(await self._client.get(self._path), 200, "read the canvas")
        return found

    async def frame(self, kind: str) -> dict[str, Any]:
        """Waits for a frame of a kind on the socket."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    frame: dict[str, Any] = json.loads(await self._socket.recv())
                    if frame["type"] == kind:
                        return frame
        except TimeoutError:
            raise WentWrong(f"a window waited in vain for a frame {kind!r}") from None


class Story:
    """One run of the story against one suite."""

    def __init__(self, url: str, prompt: str, console: Console) -> None:
        self._url = url
        self._prompt = prompt
        self._console = console
        self._canvas_id = f"demo-{secrets.token_hex(4)}"

    async def play(self) -> Path:
        """Plays it to the end, and returns where the picture is. Raises `WentWrong`."""
        try:
            async with asyncio.timeout(STORY_SECONDS), AsyncExitStack() as stack:
                client = await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=self._url, headers={"Origin": self._url}, timeout=ANSWER_SECONDS
                    )
                )
                await self._sign_up(client)
                await self._create_canvas(client)
                desk, couch = [
                    Window(client, await self._socket(stack, client), self._canvas_id)
                    for _ in range(2)
                ]
                await self._edit_at_once(desk, couch)
                text = await self._write_text(client)
                await self._keep_text(desk, couch, text)
                operation = await self._order_picture(client)
                await self._wait_for_picture(client, operation)
                return await self._fetch_picture(client, couch)
        except TimeoutError:
            raise WentWrong(f"the story was not over after {STORY_SECONDS:.0f} s") from None
        except httpx.ConnectError:
            raise WentWrong(f"nobody answers at {self._url}; is gesso up running?") from None

    async def _sign_up(self, client: httpx.AsyncClient) -> None:
        email = f"demo-{secrets.token_hex(4)}@example.com"
        account = {"email": email, "password": secrets.token_hex(8), "name": "Demo"}
        _answer(await client.post("/api/auth/register", json=account), 201, "sign up")
        wallet = _answer(await client.get("/api/wallet"), 200, "read the wallet")
        self._say(f"signed up as {email}, with {wallet['balanceCredits']} credits")

    async def _create_canvas(self, client: httpx.AsyncClient) -> None:
        nodes = [
            {
                "id": "note",
                "type": "text",
                "title": "Note",
                "position": {"x": 0, "y": 0},
                "width": 340,
                "height": 240,
                "metadata": {"content": ""},
            },
            {
                "id": "hero",
                "type": "image",
                "title": "Hero",
                "position": {"x": 420, "y": 0},
                "width": 320,
                "height": 320,
                "metadata": {"prompt": self._prompt, "status": "loading"},
            },
        ]
        canvas = {"title": "Lantern festival", "nodes": nodes}
        body = {
            "mutationId": secrets.token_hex(8),
            "baseRevision": 0,
            "operations": [{"type": "create_canvas", "canvas": canvas}],
        }
        path = f"/api/canvas-projects/{self._canvas_id}/operations"
        _answer(await client.patch(path, json=body), 200, "create a canvas")
        self._say(f"created the canvas {self._canvas_id}")

    async def _socket(self, stack: AsyncExitStack, client: httpx.AsyncClient) -> ClientConnection:
        scheme = "wss" if urlsplit(self._url).scheme == "https" else "ws"
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        socket = await stack.enter_async_context(
            connect(
                f"{scheme}://{urlsplit(self._url).netloc}"
                f"/api/canvas-projects/{self._canvas_id}/realtime",
                additional_headers={"Cookie": cookies},
                origin=self._url,  # type: ignore[arg-type] # a NewType of str
                open_timeout=ANSWER_SECONDS,
            )
        )
        welcome = json.loads(await socket.recv())
        if welcome["type"] != "welcome":
            raise WentWrong(f"a window was greeted with {welcome['type']!r}")
        self._say(f"opened a window: device {welcome['number']}")
        return socket

    async def _edit_at_once(self, desk: Window, couch: Window) -> None:
        """Two windows write different fields of one node at the same time; both must survive."""
        moved = _patch("hero", {"position": {"x": 460, "y": 40}}, {"position": {"x": 420, "y": 0}})
        renamed = _patch("hero", {"title": "Our hero"}, {"title": "Hero"})
        answers = await asyncio.gather(desk.change(moved), couch.change(renamed))
        for answer in answers:
            _answer(answer, 200, "edit from two windows")
        hero = _node(await desk.canvas(), "hero")
        if (hero["position"], hero["title"]) != ({"x": 460, "y": 40}, "Our hero"):
            raise WentWrong("an edit was lost where two windows met")
        await asyncio.gather(desk.frame("invalidate"), couch.frame("invalidate"))
        self._say("moved it in one window and renamed it in the other at once: both edits survive")
        late = await couch.change(_patch("hero", {"title": "Late"}, {"title": "Hero"}))
        if late.status_code != 409 or late.json()["reason"] != "canvas_field_conflict":
            raise WentWrong("a write on an old baseline was not refused")
        self._say("wrote on an old baseline: refused, and told what is there now")

    async def _write_text(self, client: httpx.AsyncClient) -> str:
        task = _answer(
            await client.post(
                "/api/tasks",
                json={
                    "type": "text",
                    "prompt": self._prompt,
                    "projectId": self._canvas_id,
                    "metadata": {"nodeId": "note"},
                },
                headers={"Idempotency-Key": secrets.token_hex(8)},
            ),
            202,
            "ask for a text",
        )
        self._say("asked for a text; it streams:")
        shown = ""
        async for name, event in _events(client, f"/api/tasks/{task['id']}/text-events"):
            if name == "delta":
                shown += event["content"]
                self._console.print(
                    event["content"], end="", style="italic", markup=False, soft_wrap=True
                )
            elif name == "reset":
                shown = ""
                self._console.print("\n(another worker takes over)")
            elif name == "terminal":
                self._console.print()
                if event["status"] != "succeeded":
                    raise WentWrong(f"the text {event['status']}")
                if event["finalText"] != shown:
                    raise WentWrong("the text that streamed is not the text that is kept")
                return shown
        raise WentWrong("the text ended without an end")

    async def _keep_text(self, desk: Window, couch: Window, text: str) -> None:
        kept = _patch("note", {"metadata.content": text}, {"metadata.content": ""})
        _answer(await desk.change(kept), 200, "keep the text on the canvas")
        if _node(await couch.canvas(), "note")["metadata"]["content"] != text:
            raise WentWrong("the other window does not see the text")
        self._say("kept the text on the canvas: the other window has it")

    async def _order_picture(self, client: httpx.AsyncClient) -> dict[str, Any]:
        body = {
            "kind": "editor_image_generation",
            "params": {"prompt": self._prompt},
            "canvasCompletion": {"placeholderNodeId": "hero"},
        }
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        path = f"/api/canvas-projects/{self._canvas_id}/generations"
        # Where generation is inline it answers once the picture is there.
        ordered = [
            await client.post(path, json=body, headers=headers, timeout=STORY_SECONDS)
            for _ in range(2)
        ]
        operations: list[dict[str, Any]] = [
            _answer(answer, 200 if answer.status_code == 200 else 202, "order a picture")[
                "operation"
            ]
            for answer in ordered
        ]
        jobs = {operation["operationId"] for operation in operations}
        wallet = _answer(await client.get("/api/wallet"), 200, "read the wallet")
        charges = [entry for entry in wallet["entries"] if entry["kind"] == "charge"]
        if len(jobs) != 1 or len(charges) != 1:
            raise WentWrong("an order that was sent twice was taken twice")
        self._say(
            f"ordered a picture, the order sent twice as if an answer was lost: one job, "
            f"{-charges[0]['deltaCredits']} credits"
        )
        return operations[-1]

    async def _wait_for_picture(self, client: httpx.AsyncClient, found: dict[str, Any]) -> None:
        path = f"/api/runtime/external-generation/jobs/{found['operationId']}"
        shown = self._console.is_terminal
        with Progress(console=self._console, transient=True, disable=not shown) as progress:
            bar = progress.add_task("waiting", total=100)
            while True:
                label = found["phaseLabel"] or found["status"]
                progress.update(bar, completed=found["progress"], description=label)
                if found["status"] == "failed":
                    raise WentWrong(f"the picture failed: {found.get('error')}")
                if found["status"] == "completed":
                    return
                await asyncio.sleep(POLL_SECONDS)
                found = _answer(await client.get(path), 200, "follow the job")

    async def _fetch_picture(self, client: httpx.AsyncClient, couch: Window) -> Path:
        hero = _node(await couch.canvas(), "hero")
        found = hero["metadata"]
        if found.get("status") != "success" or (hero["title"], hero["position"]["x"]) != (
            "Our hero",
            460,
        ):
            raise WentWrong(f"the canvas does not hold the picture: {found}")
        resource_id = found["storageKey"].removeprefix("resource:")
        answer = await client.get(f"/api/resources/{resource_id}/file")
        if answer.status_code != 200 or answer.headers["content-type"] != "image/png":
            raise WentWrong("the picture cannot be read back")
        with Image.open(io.BytesIO(answer.content)) as image:
            image.load()
            size = image.size
        if size != (found["naturalWidth"], found["naturalHeight"]):
            raise WentWrong("the picture is not of the size that the canvas says")
        self._say(f"the canvas holds the picture, {size[0]}x{size[1]}, and kept what you changed")
        path = Path.cwd() / f"{_file_name(self._prompt)}.png"
        await asyncio.to_thread(path.write_bytes, answer.content)
        return path

    def _say(self, text: str) -> None:
        self._console.print(f"[green]✓[/green] {escape(text)}", soft_wrap=True)


def _answer(answer: httpx.Response, status: int, what: str) -> Any:
    """The JSON of an answer that must have a status."""
    if answer.status_code != status:
        raise WentWrong(f"could not {what}: {answer.status_code} {answer.text[:300]}")
    return answer.json()


async def _events(
    client: httpx.AsyncClient, path: str
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, resumed where it was cut, until the terminal one."""
    last = ""
    while True:
        headers = {"Last-Event-ID": last} if last else {}
        async with client.stream("GET", path, headers=headers) as answer:
            if answer.status_code != 200:
                raise WentWrong(f"could not follow the text: {answer.status_code}")
            name = ""
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    last = value
                elif field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)
                    if name == "terminal":
                        return
        await asyncio.sleep(POLL_SECONDS)


def _patch(node_id: str, patch: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {"type": "patch_node", "id": node_id, "patch": patch, "before": before}


def _node(canvas: dict[str, Any], node_id: str) -> dict[str, Any]:
    for node in canvas["nodes"]:
        if node["id"] == node_id:
            found: dict[str, Any] = node
            return found
    raise WentWrong(f"the node {node_id!r} is gone")


def _file_name(prompt: str) -> str:
    """A name for a file, out of the letters of the prompt in any script."""
    letters = unicodedata.normalize("NFC", prompt)
    return re.sub(r"\W+", "-", letters).strip("-")[:60] or "picture"
