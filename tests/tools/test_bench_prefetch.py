# SPDX-License-Identifier: Apache-2.0
"""tools/bench/prefetch tells one percent where runs, tokens and times of day differ by far more."""
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/bench"))
from prefetch import interval, pairs  # noqa: E402

TURNS, LEAVE, TOKENS = 20, 4, 800


def runs(ratio, seed):
    """Two runs of the same tokens: one is slower by a third, both grow slower as they go; after a change all is odd."""
    r = random.Random(seed)
    tokens = [r.uniform(0.05, 0.4) for _ in range(TOKENS)]
    made = []
    for begins, slower in (("with", 1.33), ("without", 1)):
        ns = []
        for i, token in enumerate(tokens):
            guesses = (i // TURNS % 2 == 0) == (begins == "with")
            odd = 9 if i % TURNS < LEAVE else 1
            ns.append(1e9 * token * slower * (1 + i / TOKENS) * odd * (ratio if guesses else 1) * r.gauss(1, 0.05))
        made.append({"turns": {"passes": TURNS, "begins": begins, "pass_ns": ns}})
    return made


bad = 0
for ratio in (0.8, 0.99, 1, 1.01, 1.2):
    inside = 0
    for seed in range(20):
        logs = pairs(*runs(ratio, seed), TURNS, LEAVE)
        assert len(logs) == TOKENS // TURNS // 2, len(logs)
        middle, low, high = interval(logs)
        assert low < middle < high and high / low < 1.03, (low, middle, high)
        inside += low <= ratio <= high
    print(f"{ratio}: inside of the interval {inside} times of 20")
    bad += inside < 15
sys.exit(bad > 0)
