"""The tour of the README, run as it stands against a real suite."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.suite import Up, until

README = Path(__file__).parents[2] / "README.md"
END = "--- end of the block"


class Shell:
    """A shell that one block after another is typed into."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self._url = url

    def run(self, block: str) -> str:
        """What the block prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        block = block.replace("http://127.0.0.1:8080", self._url)
        self._process.stdin.write(f"{block}\necho '\n{END}'\n")
        self._process.stdin.flush()
        said: list[str] = []
        for line in self._process.stdout:
            if line.strip() == END:
                break
            said.append(line)
        return "".join(said)


@pytest.fixture
def shell(up: Up, tmp_path: Path) -> Iterator[Shell]:
    with subprocess.Popen(
        ["bash"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield Shell(process, up.url)
        process.terminate()


def test_every_step_of_the_tour_does_what_the_readme_says(shell: Shell) -> None:
    tour = README.read_text().partition("## A tour of five minutes")[2].partition("\n## ")[0]
    register, token, create, stale, order, look, text = re.findall(
        r"```sh\n(.*?)```", tour, re.DOTALL
    )

    registered = shell.run(register)
    wallet = shell.run(token)
    created, again = shell.run(create), shell.run(create)
    refused = shell.run(stale)
    ordered = shell.run(order)
    until(lambda: '"status":"success"' in shell.run(look))
    streamed = shell.run(text)

    assert '"email":"you@example.com"' in registered
    assert '"balanceCredits":1000' in wallet
    assert '"revision":1' in created
    assert created == again
    assert '"reason":"canvas_field_conflict"' in refused
    assert '"currentValue":"Hero"' in refused
    assert '"operationId":"extgen-' in ordered
    assert '"storageKey":"resource:rs_' in shell.run(look)
    assert "event: delta" in streamed
    assert '"status":"succeeded"' in streamed
