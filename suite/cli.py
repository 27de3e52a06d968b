"""The `gesso` command."""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from suite import roles
from suite.roles import RoleKind

DATA_FOLDER = Path("var")

_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_FOLDER,
    show_default=True,
    help="Where the suite keeps its data.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="gesso", message="%(package)s %(version)s")
def gesso() -> None:
    """Gesso, the back end of an AI generation canvas.

    \b
    gesso up            run the whole suite on this machine
    gesso demo          see it work, from sign-up to a picture on a canvas
    gesso ps            see what runs
    """


@gesso.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="Where the browser finds it; further gateways take the next ports.",
)
@_data_dir
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    help="So many worker processes of each kind, always; without it one for texts, and for "
    "pictures as many as there is work, which the controller starts and stops.",
)
@click.option(
    "--gateways",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Gateway processes.",
)
@click.option(
    "--presence",
    "presences",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Presence processes.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
def up(
    *,
    port: int,
    data_dir: Path,
    workers: int | None,
    gateways: int,
    presences: int,
    open_browser: bool,
) -> None:
    """Run the whole suite on this machine until Ctrl-C.

    PostgreSQL and Valkey are brought along unless GESSO_DATABASE_URL and GESSO_REDIS_URL name
    others. A process that dies is restarted.

    \b
    gesso up
    gesso up --port 9000 --data-dir /srv/gesso --workers 2
    gesso up --gateways 2 --presence 2
    """
    from suite.commands.up import run_up
    from suite.constellation import Wanted

    wanted = Wanted(
        data_dir.absolute(), port=port, workers=workers, gateways=gateways, presences=presences
    )
    sys.exit(run_up(wanted, open_browser=open_browser))


@gesso.command()
@click.option("--url", help="A running suite; without it, that of --data-dir or a temporary one.")
@_data_dir
@click.option(
    "--prompt",
    default="a paper lantern over a quiet river at night",
    show_default=True,
    help="What to draw.",
)
def demo(*, url: str | None, data_dir: Path, prompt: str) -> None:
    """See the main job done on real input: two windows, a text, a picture on the canvas.

    Exit code 0 only if all of it happened. The picture is written to the current folder.

    \b
    gesso demo
    gesso demo --url http://127.0.0.1:8080 --prompt "河上的一盏纸灯笼"
    """
    from suite.commands.demo import run_demo

    sys.exit(run_demo(url, data_dir.absolute(), prompt))


@gesso.command()
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def ps(*, data_dir: Path, as_json: bool) -> None:
    """See which processes run, and how much memory they hold.

    \b
    gesso ps
    gesso ps --json
    """
    from suite.commands.ps import run_ps

    sys.exit(run_ps(data_dir.absolute(), as_json=as_json))


@gesso.command()
@click.argument("names", nargs=-1)
@_data_dir
@click.option("--follow", "-f", is_flag=True, help="Go on as new lines come.")
@click.option("--lines", "-n", type=click.IntRange(0), default=20, show_default=True)
@click.option("--raw", is_flag=True, help="The JSON lines as they are.")
def logs(*, names: Sequence[str], data_dir: Path, follow: bool, lines: int, raw: bool) -> None:
    """Read what the processes say, of all or of those named.

    \b
    gesso logs
    gesso logs gateway canvas -f
    """
    from suite.commands.logs import run_logs

    sys.exit(run_logs(data_dir.absolute(), names, follow=follow, lines=lines, raw=raw))


@gesso.command()
@_data_dir
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
def doctor(*, data_dir: Path, port: int) -> None:
    """Check the set-up, and say how to mend it.

    \b
    gesso doctor
    """
    from suite.commands.doctor import run_doctor

    sys.exit(run_doctor(data_dir.absolute(), port))


@gesso.group()
def db() -> None:
    """The SQL schemas in GESSO_DATABASE_URL."""


@db.command()
def migrate() -> None:
    """Bring every schema to its newest revision.

    \b
    GESSO_DATABASE_URL=postgresql://gesso@db/gesso gesso db migrate
    """
    from suite.commands.db import run_migrate

    sys.exit(run_migrate())


@db.command()
def status() -> None:
    """Say which revision each schema is at. Exit code 1 if one is behind.

    \b
    GESSO_DATABASE_URL=postgresql://gesso@db/gesso gesso db status
    """
    from suite.commands.db import run_status

    sys.exit(run_status())


@gesso.group()
def jobs() -> None:
    """Calls of paid providers whose outcome nobody knows.

    Of the suite that runs on --data-dir, or of GESSO_GENERATION_ADDRESS with GESSO_INTERNAL_TOKENS.
    """


@jobs.command()
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def uncertain(*, data_dir: Path, as_json: bool) -> None:
    """List them, newest first: ask the provider what became of each.

    \b
    gesso jobs uncertain
    """
    from suite.commands.jobs import run_uncertain

    sys.exit(run_uncertain(data_dir.absolute(), as_json=as_json))


@jobs.command()
@click.argument("job_id")
@click.argument("number", type=click.IntRange(1, 100))
@click.argument("outcome", type=click.Choice(["succeeded", "failed", "cancelled"]))
@_data_dir
@click.option("--note", default="", help="How that was found out.")
def resolve(*, job_id: str, number: int, outcome: str, data_dir: Path, note: str) -> None:
    """Take note of what became of a call. The job and its money stay as they are.

    \b
    gesso jobs resolve extgen-9f3c2b71 1 failed --note "not in the provider's bill"
    """
    from suite.commands.jobs import run_resolve

    sys.exit(run_resolve(data_dir.absolute(), job_id, number, outcome, note))


@gesso.command()
def settings() -> None:
    """List every setting: its variable, what it means, its default.

    \b
    gesso settings
    """
    from suite.commands.settings import run_settings

    sys.exit(run_settings())


def _add_role(kind: RoleKind) -> None:
    """`gesso SERVICE serve|worker|controller`: one process, as Kubernetes runs it."""
    name = kind.module.removeprefix("services.")
    group = gesso.commands.get(name)
    if group is None:
        group = click.Group(name, help=f"The {name} service, one process of it.")
        gesso.add_command(group)
    assert isinstance(group, click.Group)

    @group.command(kind.verb, help=f"Run one {kind.name} process until SIGTERM.")
    def role() -> None:
        sys.argv = [kind.module, kind.verb]
        runpy.run_module(kind.module, run_name="__main__", alter_sys=True)


for _kind in roles.KINDS:
    _add_role(_kind)


def main() -> None:
    """Runs the command line; every mistake is one line on stderr."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        gesso.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "gesso"
        click.echo(f"{where}: {error.format_message()} See {where} --help.", err=True)
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
