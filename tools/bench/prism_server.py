# SPDX-License-Identifier: Apache-2.0
"""prism_server.py MNT KEY: the runtime of one of prism.py's servers, on its mount. Reads commands as lines of JSON, and answers each:
["load", [[layer, expert], ...]]; ["peers", "HOST:PORT,..."]; ["run", prompt, requests as lists, [tokens][layers][chosen]] answers the
seconds of each request, vectors of peers and of this machine, requests to peers that failed, and the longest pass; ["time", layer, experts, tokens, rounds] answers the seconds of a mixture."""
import ctypes
import json
import os
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
from expertfs import _library as efs  # noqa: E402


class PeerStats(ctypes.Structure):
    _fields_ = [("remote", ctypes.c_uint64), ("local", ctypes.c_uint64), ("failed", ctypes.c_uint64), ("peers", ctypes.c_uint),
                ("ready", ctypes.c_uint)]


class Runtime:
    def __init__(self, mount, key):
        self.client, self.team, self.error, self.key = efs.P(), efs.P(), efs.ErrorText(), key
        efs.check(efs.lib.efs_client_open(mount.encode(), None, ctypes.byref(self.client), ctypes.byref(self.error)), self.error)
        efs.check(efs.lib.efs_team_new(1, ctypes.byref(self.team)))
        with open(os.path.join(mount, "config.json")) as file:
            config = json.load(file)
        self.hidden, self.experts = config["hidden_size"], config["num_experts"]
        self.x = np.random.default_rng(1).standard_normal((256, self.hidden), dtype=np.float32)
        self.y = np.empty_like(self.x)

    def mixture(self, ids):
        """(the mixture, the memory that it points to). ids: int32 [tokens][chosen], contiguous."""
        tokens, chosen = ids.shape
        weights = np.full(ids.shape, 1 / chosen, dtype=np.float32)
        router = efs.RouterOutput(self.experts, chosen, efs.I32, efs.F32, ids.ctypes.data, weights.ctypes.data)
        return efs.Mixture(0, None, ctypes.pointer(router), None, 0, 0, self.x.ctypes.data, tokens, self.hidden, self.hidden, self.hidden,
                           self.y.ctypes.data, None, efs.ANY), (ids, weights, router)

    def run_mixture(self, layer, mixture):
        efs.check(efs.lib.efs_client_ffn(self.client, self.team, b"", layer, ctypes.byref(mixture), ctypes.byref(self.error)), self.error)

    def load(self, experts):
        for layer, expert in experts:
            mixture, _memory = self.mixture(np.array([[expert]], dtype=np.int32))
            self.run_mixture(layer, mixture)

    def peers(self, addresses):
        efs.check(efs.lib.efs_client_peers(self.client, addresses.encode(), self.key.encode(), ctypes.byref(self.error)), self.error)
        end = time.monotonic() + 30
        while self.stats().ready < self.stats().peers and time.monotonic() < end:
            time.sleep(0.01)

    def stats(self):
        stats = PeerStats()
        efs.lib.efs_client_peer_stats(self.client, ctypes.byref(stats))
        return stats

    def run(self, prompt, requests):
        before, seconds, longest = self.stats(), [], 0
        for ids in requests:
            ids = np.array(ids, dtype=np.int32)
            passes = [[self.mixture(np.ascontiguousarray(ids[begin:end, layer])) for layer in range(ids.shape[1])]
                      for begin, end in ((0, prompt), *((at, at + 1) for at in range(prompt, len(ids))))]
            ends = [time.monotonic()]
            for layers in passes:
                for layer, (mixture, _memory) in enumerate(layers):
                    self.run_mixture(layer, mixture)
                ends.append(time.monotonic())
            seconds.append(ends[-1] - ends[0])
            longest = max(longest, *np.diff(ends).tolist())
        after = self.stats()
        return seconds, after.remote - before.remote, after.local - before.local, after.failed - before.failed, longest

    def time(self, layer, experts, tokens, rounds):
        mixture, _memory = self.mixture(np.array([experts] * tokens, dtype=np.int32))
        times = []
        for _ in range(rounds):
            begin = time.monotonic()
            self.run_mixture(layer, mixture)
            times.append(time.monotonic() - begin)
        return statistics.median(times)


def main():
    runtime = Runtime(*sys.argv[1:])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(runtime, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
