"""`gesso settings`."""

from rich.console import Console
from rich.table import Table

from servicekit.settings import Variable, variables
from suite.roles import KINDS


def run_settings() -> int:
    """Lists every setting once, with what it means and its default."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("variable", "default", "what it means"):
        table.add_column(column, overflow="fold")
    for variable in all_variables():
        default = "required" if variable.required else variable.default or ""
        table.add_row(variable.name, default, variable.description)
    Console(highlight=False).print(table)
    return 0


def all_variables() -> list[Variable]:
    """Every variable that a process of the suite reads, shared ones once."""
    found: dict[str, Variable] = {}
    for kind in KINDS:
        for variable in variables(kind.settings(), kind.name):
            found.setdefault(variable.name, variable)
    return sorted(found.values(), key=lambda variable: (not variable.shared, variable.name))
