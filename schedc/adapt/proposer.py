"""The proposer's process, beside a training job: is asked for the best plan under conditions, and answers with its bytes.

`schedc.runtime.adapt.proposer` asks it. The first question is the job's plan, those of its family, and how many pipelines there
are, pickled; the answer is the digest of the bytes of the job's plan. Every further one is `(digest of the plan that runs,
conditions)`; the answer are the fields of `ProposerAnswer` behind those.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys

from schedc.adapt.replan import Choice, replan
from schedc.compiled.compiler import compile_ahead
from schedc.errors import SchedcError
from schedc.formats.plan.plan_file import plan_json
from schedc.io.child import serve
from schedc.ir import Conditions, Kind, Plan
from schedc.lower.problem import problem_under
from schedc.solvers.kernel.climb import climb_of, climbing_scheduler

NICE = 10
"""The training processes of the machine go first."""


class Answering:
    """Answers of one process; the first question has the plans that there are before."""

    def __init__(self) -> None:
        """No plan yet."""
        self._own = ""
        self._plans: dict[str, tuple[Plan, bytes]] = {}
        """By the digest of their bytes: the job's own, the family's, the one that runs, and the one proposed last."""
        self._family: tuple[str, ...] = ()
        """The digests of the family's plans."""
        self._replicas = 1

    def __call__(self, question: bytes) -> bytes:
        """The answer."""
        asked = pickle.loads(question)
        return pickle.dumps(self._answer(*asked)) if self._own else self._begin(*asked)

    def _begin(self, plan: Plan, known: tuple[Plan, ...], replicas: int) -> bytes:
        self._own = self._keep(plan)
        self._replicas = replicas
        self._family = tuple(self._keep(each) for each in known)
        compile_ahead(climb_of(climbing_scheduler(plan.problem)))  # until it is, the kernel runs plain
        replan(plan, Conditions(slowdown={(0, Kind.F): 2.0}))  # what is imported and made once is at hand then
        gc.collect()
        gc.freeze()  # a collection that looks at all modules takes as long as a proposal
        return self._own.encode()

    def _answer(self, running: str, conditions: Conditions) -> tuple[str | None, bool, int, int, str, bytes]:
        own, _ = self._plans[self._own]
        known = [self._plans[key][0] for key in self._family if key not in (self._own, running)]
        try:
            proposal = replan(own, conditions, running=self._plans[running][0], known=known, replicas=self._replicas)
        except SchedcError as error:
            return str(error), False, 0, 0, running, b""
        self._plans = {key: self._plans[key] for key in (self._own, *self._family, running)}
        sha256 = running
        if proposal.choice is not Choice.RUNNING:
            sha256 = next((key for key, (plan, _) in self._plans.items() if plan is proposal.plan), None) or self._keep(
                proposal.plan
            )
        back = sha256 == self._own != running and problem_under(own.problem, conditions) == own.problem
        content = b"" if sha256 == running else self._plans[sha256][1]
        return None, back, proposal.running_ns, proposal.objective_ns, sha256, content

    def _keep(self, plan: Plan) -> str:
        content = plan_json(plan)
        sha256 = hashlib.sha256(content).hexdigest()
        self._plans[sha256] = plan, content
        return sha256


if __name__ == "__main__":
    os.nice(NICE)
    serve(int(sys.argv[1]), Answering())
