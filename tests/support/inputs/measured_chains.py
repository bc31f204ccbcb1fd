"""Layers of real models, and the least possible load of the busiest stage for some numbers of stages.

The times are those of PipeDream's profiles (github.com/msr-fiddle/pipedream, MIT license, commit 7db6a1c,
`profiler/*/profiles/{vgg16,gnmt}/graph.txt`): the cuts that PipeDream itself partitions at, forward and backward together, in
microseconds. The least loads come from a dynamic program of another hand; PipeDream's planner gives the same for VGG-16 on 4 and 16
and for GNMT on 4 and 8.

BERT-24 is that of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (2020),
github.com/msr-fiddle/dnn-partitioning, MIT license, commit b207b6a, `throughput-inputs/LayerGraphs/bert24_training.json`.
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
    "bert24": [
        0,
        0,
        5474,
        0,
        3650,
        8423,
        8367,
        8402,
        8386,
        8427,
        8414,
        8371,
        8512,
        8428,
        8315,
        8333,
        8412,
        8418,
        8337,
        8344,
        8352,
        8332,
        8343,
        8372,
        8339,
        8318,
        8311,
        8407,
        9533,
        6493,
        0,
        0,
    ],
}
LEAST_US = {
    "vgg16": {2: 370931, 4: 216450, 8: 159531, 16: 159531},
    "gnmt": {2: 45936, 4: 25868, 8: 19032, 16: 19032},
    "bert24": {2: 109914, 4: 58538, 8: 33371, 16: 16785},
}
BERT24_MESSAGE_US = 1.953125
"""What each message between two stages of BERT-24 adds to the load of both, forth and again back."""
BERT24_CUTS = (0, 8, 12, 16, 20, 25)
"""Where Tarnawski's stages begin, on 6 devices."""
BERT24_LOADS_US = (34319.9, 33605.8, 33595.8, 33518.8, 41745.8, 41065.9)
"""Of each, as its program prints them; the human expert's largest is 49,404.9."""
