# SPDX-License-Identifier: Apache-2.0
"""make_trace.py PATH SEED SEQUENCES TOKENS [LAYERS [EXPERTS [CHOSEN]]]: a routing trace with skewed random choices."""
import random
import struct
import sys

path, numbers = sys.argv[1], [int(n) for n in sys.argv[2:]]
seed, sequences, tokens, layers, experts, chosen = numbers + [4, 16, 3][len(numbers) - 3:]
r = random.Random(seed)
weights = [1 / (1 + e) for e in range(experts)]
with open(path, "wb") as f:
    f.write(b"MOETRACE" + struct.pack("<6IQ", 1, layers, experts, chosen, 0, 3, sequences * tokens) + b"tst")
    for s in range(sequences):
        for _ in range(tokens):
            f.write(struct.pack("<I", s))
            for layer in range(layers):
                ids = []
                while len(ids) < chosen:
                    e = (r.choices(range(experts), weights)[0] + layer) % experts
                    if e not in ids:
                        ids.append(e)
                f.write(struct.pack(f"<{chosen}H", *ids))
