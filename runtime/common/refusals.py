"""Why a step has ended: what one rank has refused is raised by all that would know only that their connections are lost.

A rank that refuses a step that runs leaves a line in the job's store before it closes its connections; so whoever finds one lost
reads it, and leaves it for the ranks that lose their connections to it in turn, in other pipelines as well.
"""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.runtime.common.failure import TransferFailed

if TYPE_CHECKING:
    from schedc.runtime.common.groups import Groups

REFUSED = "refused"
"""Under which key a refusal is left."""
REFUSALS: dict[str, type[SchedcError]] = {kind.__name__: kind for kind in (CheckFailed, InvalidInput, Unsupported)}
PATIENCE_S = 5.0
"""How long to wait for the store, whose process may be the one that is lost or stuck."""


def refusal_behind(groups: Groups, error: SchedcError) -> SchedcError | None:
    """What to raise in place of an error that closes this rank's pipe, before it does; None: the error itself."""
    found: list[SchedcError] = []
    thread = Thread(target=_exchange_refusal, args=(groups, error, found), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0] if found else None


def _exchange_refusal(groups: Groups, error: SchedcError, found: list[SchedcError]) -> None:
    """Leave the refusal, or that of another rank if this one found it, where all who have a connection to this rank read it."""
    everywhere = (groups, *groups.beside)
    with suppress(RuntimeError):  # the store is lost: the error itself is raised
        if isinstance(error, TransferFailed):
            left = next((json.loads(one.store.get(REFUSED)) for one in everywhere if one.store.check([REFUSED])), None)
            if left is None:
                return
            kind, line = left
            found.append(REFUSALS[kind](line))
        else:
            kind = type(error).__name__ if type(error).__name__ in REFUSALS else CheckFailed.__name__
            line = str(error) if str(error).startswith(f"rank {groups.rank}: ") else f"rank {groups.rank}: {error}"
        for one in everywhere:
            one.store.set(REFUSED, json.dumps([kind, line]))
            one.store.wait([REFUSED])  # `set` returns before the store has it
