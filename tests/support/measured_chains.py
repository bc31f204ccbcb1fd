"""Layers of real models, and the least possible load of the busiest stage for some numbers of stages.

The times are those of PipeDream's profiles (github.com/msr-fiddle/pipedream, MIT license, commit 7db6a1c,
`profiler/*/profiles/{vgg16,gnmt}/graph.txt`): the cuts that PipeDream itself partitions at, forward and backward together, in
microseconds. The least loads come from a dynamic program of another hand; PipeDream's planner gives the same for VGG-16 on 4 and 16
and for GNMT on 4.
"""

CHAINS_US = {
    "vgg16": [
        46920,
        9999,
        159531,
        9766,
        9374,
        54803,
        5097,
        75441,
        5133,
        4999,
        29149,
        2757,
        44481,
        3103,
        48133,
        2870,
        2682,
        23823,
        1722,
        37259,
        1527,
        40445,
        1523,
        1583,
        12989,
        1050,
        11466,
        653,
        12690,
        630,
        787,
        0,
        0,
        7050,
        407,
        0,
        1443,
        309,
        0,
        941,
    ],
    "gnmt": [7022, 5263, 273, 8538, 0, 192, 6694, 0, 0, 180, 6693, 0, 0, 11081, 17612, 19032, 0, 0, 6836],
}
LEAST_US = {
    "vgg16": {2: 370931, 4: 216450, 8: 159531, 16: 159531},
    "gnmt": {2: 45936, 4: 25868, 8: 19032, 16: 19032},
}
