"""Why a rank refuses a step that runs, for the ranks that would know only that its connections are lost: a line in the job's store.

The rank leaves the line before it closes its connections; so whoever finds one lost reads it, and leaves it for the ranks that lose
their connections to it in turn, in other pipelines as well. Imported where a step has failed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.runtime.common.failure import NonFiniteLoss, TransferFailed

if TYPE_CHECKING:
    from schedc.runtime.common.groups import Groups

KEY = "refused"
KINDS: dict[str, type[SchedcError]] = {kind.__name__: kind for kind in (CheckFailed, InvalidInput, Unsupported)}
PATIENCE_S = 5.0
"""How long to wait for the store, whose process may be the one that is lost or stuck."""


def refusal_behind(error: BaseException, groups: Groups) -> SchedcError | None:
    """What to raise in place of an error that closes this rank's pipe; None: the error itself. Called before the pipe is closed.

    Args:
        error: what a step, an evaluation or a gather has raised here.
        groups: of the pipeline; with those `beside` it.
    """
    if not isinstance(error, SchedcError) or isinstance(error, NonFiniteLoss):
        return None
    found: list[SchedcError] = []
    thread = Thread(target=_exchange, args=(error, groups, found), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0] if found else None


def _exchange(error: SchedcError, groups: Groups, found: list[SchedcError]) -> None:
    """Leave the refusal where all can read it who have a connection to this rank; that of another rank, if this one found it."""
    everywhere = (groups, *groups.beside)
    with suppress(RuntimeError):  # the store is lost: the error itself is raised
        if isinstance(error, TransferFailed):
            left = next((json.loads(one.store.get(KEY)) for one in everywhere if one.store.check([KEY])), None)
            if left is None:
                return
            kind, line = left
            found.append(KINDS[kind](line))
        else:
            kind = type(error).__name__ if type(error).__name__ in KINDS else CheckFailed.__name__
            line = str(error) if str(error).startswith(f"rank {groups.rank}: ") else f"rank {groups.rank}: {error}"
        for one in everywhere:
            one.store.set(KEY, json.dumps([kind, line]))
            one.store.wait([KEY])  # `set` returns before the store has it
