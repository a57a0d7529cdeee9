# SPDX-License-Identifier: Apache-2.0
"""sched/place by ctypes, for prism.py: placements by its rules, and its simulator, compiled here from the sources."""
import ctypes
import glob
import os
import subprocess
from ctypes import POINTER, Structure, c_double, c_int, c_uint32, c_uint64, c_void_p

import numpy as np

from common import ROOT, WORK

RULES = ("uniform", "redundance", "smartmoe", "eplb", "greedy", "prism", "ours-calls", "ours-time")
SEED = 1


class Server(Structure):
    _fields_ = [("gpus", c_uint32), ("gpu_bytes", c_uint64 * 16),
                *((name, c_double) for name in ("load_bytes_per_second", "passes", "remote_s", "pass_s", "call_s"))]


class Problem(Structure):
    _fields_ = [("servers", c_uint32), ("layers", c_uint32), ("experts", c_uint32), ("expert_bytes", c_uint64), ("server", POINTER(Server)),
                ("calls", c_void_p)]


class Request(Structure):
    _fields_ = [("arrival_s", c_double), ("server", c_uint32), ("prompt", c_uint32), ("tokens", c_uint32), ("ids", c_void_p)]


TIMES = ("layer_s", "layer_token_s", "expert_s", "expert_token_s", "latency_s", "bytes_per_second", "token_bytes")


class Config(Structure):
    _fields_ = [*((name, c_uint32) for name in ("servers", "layers", "experts", "chosen")), ("missing", c_int),
                *((name, c_double) for name in TIMES), ("load_s", c_double), ("review_s", c_double), ("review", c_void_p), ("stop", c_void_p),
                ("arg", c_void_p)]


class Result(Structure):
    _fields_ = [*((name, c_uint64) for name in ("requests", "local", "calls", "changes")), ("latency_s", c_double), ("remote_s", c_double),
                ("server_latency_s", c_void_p), ("server_requests", c_void_p), ("latencies", c_void_p), ("tables", c_void_p * 2)]


def library():
    path, sources = os.path.join(WORK, "libplace.so"), glob.glob(os.path.join(ROOT, "sched/place/*.c")) + [os.path.join(ROOT, "sched/base/tables.c")]
    subprocess.run(["cc", "-O2", "-std=gnu11", "-fPIC", "-shared", f"-I{ROOT}/sched/base", f"-I{ROOT}/sched/place", "-o", path, *sources, "-lm"],
                   check=True)
    return ctypes.CDLL(path)


class Simulator:
    """times: {name of TIMES: value}, measured. tasks: of prism.py, one for each server."""

    def __init__(self, tasks, slots, times):
        self.lib, self.tasks, self.times, self.slots = library(), tasks, times, slots
        self.servers, (_, self.layers, self.chosen), self.experts = len(tasks), tasks[0].ids.shape, tasks[0].experts

    def place(self, rule):
        """uint8 [servers][layers][experts] by a rule of RULES, from the halves of the tasks that are planned by."""
        calls = np.ascontiguousarray([task.calls() for task in self.tasks], dtype=np.float64)
        server = (Server * self.servers)()
        message_s = self.times["token_bytes"] / self.times["bytes_per_second"]
        for one, task in zip(server, self.tasks):
            one.gpus, one.gpu_bytes[0], one.load_bytes_per_second, one.passes = 1, self.slots, 1e9, task.passes()
            one.pass_s, one.call_s = 2 * self.times["latency_s"], 2 * message_s
            one.remote_s = one.pass_s + one.call_s
        problem = Problem(self.servers, self.layers, self.experts, 1, server, calls.ctypes.data)
        placement = np.zeros(calls.shape, dtype=np.uint8)
        if self.lib.efs_place_by(RULES.index(rule), ctypes.byref(problem), c_uint64(SEED), placement.ctypes.data_as(c_void_p)):
            raise RuntimeError(f"{rule}: no placement of {self.layers * self.experts} experts in {self.slots} slots of {self.servers} servers")
        return placement

    def run(self, placement, planned):
        """(mean latency, share of remote calls) of the same requests as served, one at a time. planned: those planned by."""
        requests = [(server, ids) for server, task in enumerate(self.tasks) for ids in task.requests(planned)]
        made = (Request * len(requests))()
        for number, (server, ids) in enumerate(requests):
            made[number] = Request(1e4 * number, server, self.tasks[server].prompt, len(ids), ids.ctypes.data)
        config = Config(self.servers, self.layers, self.experts, self.chosen, 0, **self.times)
        result = Result()
        if self.lib.efs_servers_run(ctypes.byref(config), placement.ctypes.data_as(c_void_p), made, len(requests), ctypes.byref(result)):
            raise RuntimeError("the simulator refused the requests")
        found = result.latency_s / result.requests, 1 - result.local / result.calls
        self.lib.efs_servers_free(ctypes.byref(result))
        return found

    def ours(self):
        """As `moe-replay place`: the rule whose placement has the least latency for the requests that are planned by."""
        tried = {rule: self.place(rule) for rule in ("ours-time", "ours-calls", "prism")}
        return tried[min(tried, key=lambda rule: self.run(tried[rule], True)[0])]
