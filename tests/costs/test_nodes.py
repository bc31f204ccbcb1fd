"""What collectives send within a node and out of it, counted message by message."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from schedc.costs.architecture import Attention, ContextExchange, ExpertExchange, Experts, Setting
from schedc.costs.devices import device_named, members_in_node
from schedc.costs.efficiency import ROOFLINE, collective_s
from schedc.costs.operators.attention import attention_operators
from schedc.costs.operators.operator import OperatorWork, collective
from schedc.costs.operators.sublayers import experts_operators
from schedc.costs.predicted import predicted

HIDDEN, TOKENS = 64, 96
SETTING = Setting(sequence_length=TOKENS, node=4, tensor_parallel=1)


def exchange_of(experts: Experts, setting: Setting) -> OperatorWork:
    """What F sends when tokens are dispatched; the same as when results come back."""
    there, back = (each for each in experts_operators(experts, HIDDEN, setting) if each.name == "all-to-all")
    assert there.forward == there.backward_input == back.forward == back.backward_input
    return there.forward


@pytest.mark.parametrize(
    ("members", "apart", "node", "near"),
    [
        *((8, 1, 8, 8), (16, 1, 8, 8), (8, 2, 8, 4), (8, 8, 8, 1), (4, 16, 8, 1), (24, 1, 8, 8), (6, 1, 8, 2), (12, 2, 8, 4)),
        *((64, 1, 72, 64), (128, 1, 72, 64), (72, 1, 72, 72), (36, 1, 72, 36), (144, 1, 72, 72), (8, 8, 72, 8)),
    ],
)
def test_a_node_has_these_devices_of_a_group(members: int, apart: int, node: int, near: int) -> None:
    """Racks of 72 devices are used up to 64 where groups are powers of two."""
    assert members_in_node(members, apart, node) == near


@pytest.mark.parametrize(
    ("experts", "devices", "groups"),
    [
        (Experts(count=16, chosen=3, width=64), 8, 1),
        (Experts(count=16, chosen=2, width=64), 16, 1),
        (Experts(count=12, chosen=3, width=64, groups=6, chosen_groups=3), 12, 6),
        (Experts(count=16, chosen=4, width=64, groups=4, chosen_groups=2), 8, 4),
        (Experts(count=16, chosen=2, width=64, groups=8, chosen_groups=2), 8, 8),
        (Experts(count=8, chosen=2, width=64), 4, 1),
    ],
)
def test_an_exchange_sends_what_its_tokens_need(experts: Experts, devices: int, groups: int) -> None:
    """Every choice of experts that routing allows, from a device of nodes of 4, in the mean."""
    assert experts.groups == groups
    size, each, near = experts.count // groups, experts.count // devices, 4
    choices = [
        taken
        for some in combinations(range(groups), experts.chosen_groups)
        for taken in combinations([group * size + at for group in some for at in range(size)], experts.chosen)
    ]
    own = 1
    flat = flat_out = once = once_out = 0
    for taken in choices:
        goes = [expert // each for expert in taken]
        flat += sum(device != own for device in goes)
        flat_out += sum(device // near != own // near for device in goes)
        nodes = {device // near for device in goes}
        once_out += len(nodes - {own // near})
        # To the device of the own place in a node, and on from there.
        once += sum(device % near != own % near for device in set(goes))
    token_bytes = HIDDEN * 2 / len(choices) * TOKENS
    setting = replace(SETTING, expert_parallel=devices)
    sent = exchange_of(experts, setting)
    assert (sent.link_bytes, sent.network_bytes) == pytest.approx((flat * token_bytes, flat_out * token_bytes))
    sent = exchange_of(experts, replace(setting, expert_exchange=ExpertExchange.HIERARCHICAL))
    assert (sent.link_bytes, sent.network_bytes) == pytest.approx(((once + once_out) * token_bytes, once_out * token_bytes))


def test_rings_over_nodes_have_the_adapters_of_all_their_devices() -> None:
    """8 devices gather; a ring of messages leaves a node from one device."""
    wide = replace(SETTING, tensor_parallel=8)
    (gather,) = collective("gather", wide, HIDDEN)
    assert gather.forward.network_bytes == gather.forward.link_bytes / 4 > 0
    attention = Attention(heads=8, kv_heads=8, head_dim=8)
    *_, ring, _ = attention_operators(attention, HIDDEN, replace(SETTING, context_parallel=8))
    assert ring.forward.network_bytes == ring.forward.link_bytes > 0
    heads = replace(SETTING, context_parallel=8, context_exchange=ContextExchange.ALL_TO_ALL)
    *_, exchange, _ = attention_operators(attention, HIDDEN, heads)
    assert exchange.forward.network_bytes == exchange.forward.link_bytes * 4 / 7 > 0
    for within in (replace(wide, node=8), replace(wide, node=None)):
        assert not collective("gather", within, HIDDEN)[0].forward.network_bytes


def test_what_leaves_a_node_counts_at_the_rate_of_its_adapter() -> None:
    """16 H100: of 16 parts of what is exchanged, 8 go through the network meanwhile 7 go through the links."""
    device = device_named("h100")
    sent = exchange_of(Experts(count=16, chosen=2, width=64), replace(SETTING, expert_parallel=16, node=8))
    copies_bytes = TOKENS * 2 * HIDDEN * 2
    assert collective_s(sent, device, ROOFLINE) == pytest.approx(copies_bytes / 2 / (50e9 * 0.75) + 2e-5)
    models = [
        predicted("deepseek-v3-671b", "h100", ep=64, etp=1, expert_exchange=how).layers[2].forward_ns
        for how in ("all-to-all", "hierarchical")
    ]
    assert models[1] < 0.65 * models[0]
