"""The representations, from Workload to Plan, the ops that they are made of, and the trace of a run. Frozen data, no algorithms.

Other rooms import from here; `index`, which needs numpy, is imported by its own name.
"""

from __future__ import annotations

from schedc.ir.alike import are_alike, groups_of
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState, LinkTrace
from schedc.ir.costs import DURATIONS, FREE, BlockCosts, MessageCost
from schedc.ir.graph import Edge, share_bytes
from schedc.ir.layout import Layout, OpenLayout, OpenSlices, Placement
from schedc.ir.network import Link, Network, SiteLink, trunk_name
from schedc.ir.ops import BLOCKS, KIND_NAMES, WHOLE, Kind, Op, goes_to, parse_op, sent_to, token, unit
from schedc.ir.plan import BoundName, Certificate, Channel, MadeBy, Plan, RankPlan, Scope
from schedc.ir.problem import (
    MOST_OPS,
    DataParallel,
    Objective,
    Origin,
    Problem,
    Stage,
    Updates,
    Versions,
    with_whole_weights,
)
from schedc.ir.resource import Resource
from schedc.ir.schedule import Collective, Parts, Schedule
from schedc.ir.trace import RankTrace, StepTrace, Trace
from schedc.ir.workload import Device, Layer, Semantics, TiedWeight, Workload
