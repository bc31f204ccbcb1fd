"""A few states that stand for many: the medoids of the costs of their links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.study.robust.scenarios import Scenarios

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def clustered(problem: Problem, states: Scenarios, most: int) -> Scenarios:
    """At most this many of the states, each with the weight of all that are nearest to it.

    A state is the time that the largest message takes over each link. The distance of two is the sum of the differences. States are
    taken one by one, each the one that brings the others nearest to what is taken (the first phase of PAM, Kaufman and Rousseeuw
    1990).
    """
    count = len(states.conditions)
    if count <= most:
        return states
    message_bytes = max(max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages)
    costs_ns = np.zeros((count, len(problem.links)))
    for row, state in enumerate(states.conditions):
        for column, link in enumerate(problem.links):
            cost = state.link(link)
            costs_ns[row, column] = cost.latency_ns + cost.occupancy_ns(message_bytes)
    apart_ns = np.abs(costs_ns[:, None, :] - costs_ns[None, :, :]).sum(axis=2)
    weights = np.array(states.weights)
    nearest_ns = np.full(count, np.inf)
    taken: list[int] = []
    for _ in range(most):
        left_ns = (np.minimum(nearest_ns[None, :], apart_ns) * weights).sum(axis=1)
        taken.append(int(left_ns.argmin()))
        nearest_ns = np.minimum(nearest_ns, apart_ns[taken[-1]])
        if not nearest_ns.any():
            break
    owner = apart_ns[taken].argmin(axis=0)
    shares = [float(weights[owner == number].sum()) for number in range(len(taken))]
    return Scenarios(tuple(states.conditions[number] for number in taken), tuple(shares))
