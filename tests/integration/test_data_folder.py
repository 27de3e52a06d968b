"""What a suite makes in its data folder, and what a kill in between leaves."""

from pathlib import Path
from typing import NoReturn

import pytest

from suite import postgres
from suite.constellation import Stores, Wanted, constellation


def test_a_database_that_was_not_made_to_its_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_program: str, folder: str, *_arguments: str, user: str | None) -> NoReturn:
        (Path(folder.removeprefix("--pgdata=")) / "PG_VERSION").write_text("18")
        raise KeyboardInterrupt

    data = tmp_path / "postgres"
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "_run", killed)
        with pytest.raises(KeyboardInterrupt):
            postgres.prepared(data)

    postgres.prepared(data)

    assert (data / "global" / "pg_control").exists()
    assert not (tmp_path / "postgres-new").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "postgres"
    data.mkdir()
    (data / "letter.txt").write_text("dear")

    with pytest.raises(postgres.NoDatabase, match="something else"):
        postgres.prepared(data)

    assert (data / "letter.txt").read_text() == "dear"


def test_the_internal_token_is_whole_and_stays(tmp_path: Path) -> None:
    (tmp_path / "internal-token.new").touch()
    wanted = Wanted(tmp_path, port=8080, workers=1, gateways=1, presences=1)
    stores = Stores(database_url="postgresql://nowhere", redis_url="redis://nowhere")

    tokens = {
        role.environment["GESSO_INTERNAL_TOKENS"]
        for _ in range(2)
        for role in constellation(wanted, stores, {}, control=tmp_path / "control").services
    }

    (token,) = tokens
    assert len(token) == 64
    assert (tmp_path / "internal-token").stat().st_mode & 0o777 == 0o600
