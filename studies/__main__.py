"""`python -m studies NAME`: reruns a study of this repository."""

import sys

import typer

from plait.apps.common.guard import guarded
from plait.apps.common.output import cancellable

from .command import study

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(cancellable(study))

if __name__ == "__main__":
    sys.exit(guarded(lambda: app(prog_name="python -m studies", standalone_mode=False), "--json" in sys.argv))
