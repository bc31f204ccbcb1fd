"""`schedc interference`: make interference, and train a forest that tells it from what a rank sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from schedc.cli.options import JsonOption, output_to
from schedc.errors import InvalidInput
from schedc.io.outputs import check_outputs, write_output

if TYPE_CHECKING:
    from schedc.runtime.interference.making import Competition


def interference_command(
    output: Annotated[Path, output_to("MODEL", "Where to write the forest (JSON).")],
    runs: Annotated[int, Option(min=8, help="Runs of a small stage, most of them beside processes that compete.")] = 80,
    seconds: Annotated[float, Option(min=0.5, max=60, help="How long each run is.")] = 1.5,
    seed: Annotated[int, Option(min=0, max=2**31 - 1, help="Seed of what competes when, and of the forest.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make interference on this machine, and train a forest that tells from what a rank sees how much it is slowed down.

    Nothing else should run meanwhile. The processes that it starts end with it.
    """
    check_outputs({"-o": output}, (), as_json=as_json)
    from schedc.runtime.interference.fitting import FOLDS, check_installed, fit
    from schedc.runtime.interference.forest import forest_json
    from schedc.runtime.interference.making import make
    from schedc.view.terminal.interference import interference_json, shown_interference
    from schedc.view.terminal.progress import working
    from schedc.view.terminal.show import show

    check_installed()
    with working("starting", hidden=as_json, total=runs) as progress:

        def on_run(run: int, beside: Competition) -> None:
            progress(f"{beside.burners} compute, {beside.streams} copy, {beside.duty:.0%} of the time", run)

        made = make(runs, seconds, seed=seed, on_run=on_run)
        progress("fitting", runs)
        if len({sample.run for sample in made.samples}) < FOLDS:
            raise InvalidInput(f"--seconds: found {seconds:g}, in which hardly a run was measured; expected more")
        fitted = fit(made.samples, seed=seed)
    write_output(output, forest_json(fitted.file))
    show(interference_json(made, fitted) if as_json else shown_interference(made, fitted, output))
