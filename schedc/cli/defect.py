"""What `schedc compile` leaves behind when a verifier refuses schedc's own result: one file to send with a report."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.errors import Defect, InvalidInput
from schedc.io.outputs import is_standard, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.frontend.job import Job


@contextmanager
def defects_kept(job: Job, output: Path) -> Iterator[None]:
    """Keep job and plan of a defect in a file, and name it in the message.

    Args:
        job: what is compiled.
        output: where the plan was to be written; the file goes beside it, into a temporary folder where that cannot be.

    Raises:
        Defect: the same one, its message with the file.
    """
    try:
        yield
    except Defect as defect:
        content = _report(job, defect)
        path = Path("plan.defect.json") if is_standard(output) else output.with_name(f"{output.name}.defect.json")
        try:
            write_atomically(path, content)
        except InvalidInput:  # the plan could not have been written there either
            path = Path(tempfile.mkdtemp(prefix="schedc-")) / path.name
            write_atomically(path, content)
        raise Defect(f"{defect}; this is a defect of schedc: please report it with {path}", defect.plan_json) from defect


def _report(job: Job, defect: Defect) -> bytes:
    """The version, the message, the text of the job, the values set in it, the files that it names, and the plan."""
    source = job.source
    files = {source.place.file: source.content.decode("utf-8-sig")}
    files |= {str(path): path.read_text(encoding="utf-8") for path in job.files if path != source.path and path.is_file()}
    plan = json.loads(defect.plan_json) if defect.plan_json else None
    values = [override.canonical for override in source.overrides]
    report = {"schedc": __version__, "message": str(defect), "set": values, "files": files, "plan": plan}
    return json.dumps(report, indent=1).encode()
