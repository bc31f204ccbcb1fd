"""The published values of the instances, typed once, here: what papers and peers reached, as they printed it.

Qi et al., "Zero Bubble Pipeline Parallelism" (2023), tables 5, 8 and 9; CrossPipe, tables 5 and 6; and the peers' own generators
(zero-bubble, PipeMorph's planner, PyTorch), run on the same instances with every schedule timed by one evaluator.
"""

from __future__ import annotations

from typing import NamedTuple

ZERO_BUBBLE_METHODS = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
"""The columns of `Profile.bubble_rates`."""


class Profile(NamedTuple):
    """A row of Zero Bubble's table 9, with that of its table 5."""

    model: str
    ranks: int
    microbatches: int
    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    latency_ns: int
    """T_comm, of every link."""
    bubble_rates: tuple[float, ...]
    """(cost − m (F + B + W)) / cost by `ZERO_BUBBLE_METHODS`, where cost is the longest span of any one stage."""


ZERO_BUBBLE_PROFILES = (
    Profile("1.5B", 8, 24, 18_522_000, 18_086_000, 9_337_000, 601_000, (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)),
    Profile("1.5B", 8, 32, 18_513_000, 18_086_000, 9_331_000, 626_000, (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)),
    Profile("1.5B", 8, 64, 18_546_000, 18_097_000, 9_321_000, 762_000, (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026)),
    Profile("6.2B", 8, 24, 29_718_000, 29_444_000, 19_927_000, 527_000, (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)),
    Profile("6.2B", 8, 32, 29_802_000, 29_428_000, 19_530_000, 577_000, (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022)),
    Profile("6.2B", 8, 64, 29_935_000, 29_621_000, 19_388_000, 535_000, (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010)),
    Profile("14.6B", 16, 48, 11_347_000, 11_248_000, 8_132_000, 377_000, (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066)),
    Profile("14.6B", 16, 64, 11_307_000, 11_254_000, 8_101_000, 379_000, (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054)),
    Profile("14.6B", 16, 128, 11_325_000, 11_308_000, 8_109_000, 378_000, (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028)),
    Profile("28.3B", 32, 96, 10_419_000, 10_207_000, 7_715_000, 408_000, (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038)),
    Profile("28.3B", 32, 128, 10_408_000, 10_204_000, 7_703_000, 408_000, (0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029)),
    Profile("28.3B", 32, 256, 10_402_000, 10_248_000, 7_698_000, 460_000, (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018)),
)

ZERO_BUBBLE_V_RATES = {("28.3B", 96): 0.0593, ("28.3B", 128): 0.0451, ("28.3B", 256): 0.0236}
"""Table 8, ZB-V by model and microbatches, where table 9 has the profile: its other two models ran on other numbers of stages."""

PEER_COLUMNS = (("linear", 1), ("linear", 2), ("loop", 1), ("loop", 2), ("V", 1), ("V", 2))
"""The columns of `PEERS_MS`: placement, and the memory limit in units of p activations, p the number of ranks."""

PEERS_MS = {
    "zb-1.5B-p8-n24": (1310.4, 1236.6, 1219.7, 1219.7, 1188.5, 1180.0),
    "zb-1.5B-p8-n32": (1678.2, 1603.7, 1587.7, 1587.7, 1556.5, 1547.7),
    "zb-1.5B-p8-n64": (3154.3, 3076.9, 3064.8, 3064.8, 3033.3, 3020.8),
    "zb-6.2B-p8-n24": (2187.5, 2109.9, 2054.4, 2054.4, 2019.4, 2012.2),
    "zb-6.2B-p8-n32": (2814.4, 2733.0, 2680.0, 2680.0, 2643.5, 2635.4),
    "zb-6.2B-p8-n64": (5348.6, 5265.7, 5212.1, 5212.1, 5174.6, 5167.2),
    "zb-14.6B-p16-n48": (1714.5, 1650.8, 1612.0, 1612.0, 1587.4, 1570.5),
    "zb-14.6B-p16-n64": (2202.0, 2137.7, 2099.8, 2099.8, 2074.9, 2058.1),
    "zb-14.6B-p16-n128": (4175.5, 4110.5, 4072.4, 4072.4, 4047.2, 4030.6),
    "zb-28.3B-p32-n96": (3171.6, 3056.4, 2984.6, 2984.6, 2944.7, 2899.2),
    "zb-28.3B-p32-n128": (4075.1, 3959.6, 3888.2, 3888.2, 3848.1, 3802.7),
    "zb-28.3B-p32-n256": (7715.6, 7593.8, 7529.6, 7529.6, 7488.6, 7436.8),
    "pm-p4-n12-c0": (390.0, 390.0, 375.0, 375.0, 375.0, 375.0),
    "pm-p4-n12-first10": (460.0, 400.0, 530.0, 450.0, 440.0, 420.0),
    "pm-p4-n12-first20": (560.0, 450.0, 720.0, 590.0, 575.0, 575.0),
    "pm-p4-n12-last10": (480.0, 400.0, 550.0, 475.0, 440.0, 425.0),
    "pm-p4-n12-last20": (600.0, 460.0, 760.0, 635.0, 595.0, 545.0),
    "pm-p8-n32-c0": (1030.0, 1030.0, 995.0, 995.0, 995.0, 995.0),
    "pm-p8-n32-last30": (1880.0, 1230.0, 2590.0, 1995.0, 1870.0, 1755.0),
    "pm-p8-n32-last60": (2840.0, 1260.0, 4320.0, 3195.0, 3025.0, 2755.0),
}
"""The best makespan of the peers' generators within the memory given, in ms, rounded to 0.1 ms."""

M70_LOOP_PEERS_MS = {
    ("free", 0, 0): (1904.0, 1904.0),
    ("link", 0.25, 0.25): (2259.0, 2123.5),
    ("link", 0.25, 2): (4645.5, 4093.5),
    ("link", 2, 0.25): (3792.0, 2868.0),
    ("link", 2, 2): (6164.5, 4891.5),
    ("2dc", 0.25, 0.25): (2278.0, 2161.5),
    ("2dc", 0.25, 2): (4941.25, 4557.5),
    ("2dc", 2, 0.25): (3963.0, 3039.0),
    ("2dc", 2, 2): (6164.5, 5061.5),
}
"""(what is slow, latency, occupancy in units of F) → the best makespan in ms of the peers' generators with memory p and 2p.

They are PyTorch's interleaved 1F1B (the best with 2p wherever something is slow), PyTorch's interleaved zero bubble (the best with
p), and zero-bubble's grouped interleaved 1F1B with every group size (the best in the cell of 4645.5 ms only), each schedule timed
by `schedc.analysis.simulation.simulate`.
"""

CROSSPIPE_CASE_1_METHODS = ("1F1B", "ZBH1", "ZBV", "UDSub", "UD", "Wave")
CROSSPIPE_CASE_3_METHODS = ("UDSub", "UD", "Wave")

CROSSPIPE_S_PER_MICROBATCH = {
    (2, 0, 0): ((0.151, 0.133, 0.118, 0.137, 0.137, 0.119), (0.121, 0.118, 0.108)),
    (2, 0.25, 0.25): ((0.168, 0.150, 0.148, 0.149, 0.142, 0.127), (0.123, 0.123, 0.112)),
    (2, 0.25, 2): ((0.241, 0.230, 0.315, 0.181, 0.177, 0.250), (0.144, 0.150, 0.235)),
    (2, 2, 0.25): ((0.242, 0.229, 0.314, 0.160, 0.153, 0.148), (0.127, 0.124, 0.115)),
    (2, 2, 2): ((0.321, 0.309, 0.473, 0.198, 0.196, 0.256), (0.145, 0.147, 0.245)),
    (4, 0, 0): ((0.149, 0.133, 0.119, 0.138, 0.138, 0.122), (0.123, 0.119, 0.115)),
    (4, 0.25, 0.25): ((0.177, 0.158, 0.161, 0.155, 0.148, 0.141), (0.126, 0.123, 0.115)),
    (4, 0.25, 2): ((0.269, 0.249, 0.339, 0.216, 0.217, 0.286), (0.158, 0.162, 0.262)),
    (4, 2, 0.25): ((0.268, 0.248, 0.337, 0.200, 0.197, 0.214), (0.138, 0.138, 0.139)),
    (4, 2, 2): ((0.359, 0.338, 0.512, 0.268, 0.271, 0.339), (0.178, 0.178, 0.264)),
}
"""(sites, latency, occupancy in units of F) → measured seconds per microbatch of M70 on 8 ranks, in case 1 and in case 3."""
