# SPDX-License-Identifier: Apache-2.0
"""Models of transformers (version 5) with experts from a store: see expertfs-python(7).

    model = expertfs.transformers.from_pretrained("mnt")          # a mount
    model = expertfs.transformers.from_pretrained("model", store="model.efs", budget="8G")

The experts' parameters are never made: a layer requests the experts of its tokens when it runs."""
from __future__ import annotations

import contextlib
import errno
import os
import re
import threading

import torch
import transformers
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel

from . import session as _session
from ._library import Error

NAME = "expertfs"
WAYS = ("coded", "full")
COMMON = ("model", "language_model", "transformer", "backbone")  # parts of a name that do not distinguish stacks
SILU = ("silu", "swish")
_loading = threading.local()  # the session and the way of a model that this thread is making
_defaults: dict = {}  # of register()
_post_init = PreTrainedModel.post_init
_uses = 0  # of the patch of post_init
_lock = threading.Lock()


class Binding:
    """The layer of a store that an experts' module runs."""

    def __init__(self, session, way: str, name: str, module):
        self.session, self.way, self.name = session, way, name
        found = re.search(r"(?:^|\.)(?:layers|h|blocks|layer|block)\.(\d+)\.", name)
        if not found:
            raise Error(errno.EINVAL, f"{name}: no number of a layer in this name")
        self.layer = int(found.group(1))
        self.stack = "-".join(part for part in name[:found.start()].split(".") if part and part not in COMMON)
        layers = [one for one in session.layers() if one.number == self.layer and one.stack == self.stack]
        if not layers:
            raise Error(errno.ENOENT, f"{session.path}: no experts of layer {self.layer}, which {name} has")
        self.tensors = layers[0].tensors()
        first = f".{layers[0].experts[0]}."
        #: How the names of the experts' tensors begin, in the model and in the checkpoint.
        self.prefixes = {name + "."} | {one.name[:one.name.rindex(first) + 1] if first in one.name else one.name for one in self.tensors}
        self._check(len(layers[0].experts), module)
        self.act = getattr(module.config, "hidden_act", None) or getattr(module.config, "hidden_activation", None)
        if way == "coded" and self.act not in SILU:
            raise Error(errno.EOPNOTSUPP, f"{name}: the library does not compute the activation {self.act}\nhint: way=\"full\"")

    def _check(self, experts: int, module) -> None:
        hidden, inner = module.hidden_dim, module.intermediate_dim
        shapes = {one.role: one.shape for one in self.tensors}
        want = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if "gate_up" in shapes:
            want = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        if experts != module.num_experts or shapes != want:
            there = ", ".join(f"{one.name} {list(one.shape)}" for one in self.tensors)
            raise Error(errno.EINVAL, f"{self.session.path}: layer {self.layer} has {experts} experts of {there}; {self.name} needs "
                        f"{module.num_experts} experts, gate and up {[inner, hidden]}, down {[hidden, inner]}")


def _is_experts(module) -> bool:
    """Whether use_experts_implementation() of transformers made it."""
    return hasattr(module, "is_concatenated") and hasattr(module, "num_experts")


def _strip(model, session, way: str) -> None:
    """Binds the experts' modules to their layers, and removes their parameters, which have no memory yet."""
    for name, module in model.named_modules():
        if not _is_experts(module):
            continue
        if module.has_bias or module.is_transposed or not module.has_gate or module.has_post_expert_norm:
            raise Error(errno.EOPNOTSUPP, f"{name}: experts with biases, without a gate, transposed or with a norm are not run from a store")
        for parameter in list(module._parameters):
            del module._parameters[parameter]
        module._is_hf_initialized = True  # nothing to initialise
        module._expertfs = Binding(session, way, name, module)


def _patched_post_init(model) -> None:
    ours = getattr(model.config, "_experts_implementation", None) == NAME
    if ours:
        session, way = _current(model.config)
        _strip(model, session, way)
    _post_init(model)
    if ours:
        model._keys_to_ignore_on_load_unexpected |= {
            re.escape(prefix) for binding in _bindings(model) for prefix in binding.prefixes}


def _bindings(model) -> list[Binding]:
    return [module._expertfs for module in model.modules() if hasattr(module, "_expertfs")]


def _current(config) -> tuple:
    if not hasattr(_loading, "session"):
        raise Error(errno.EINVAL, "experts_implementation=\"expertfs\": call expertfs.transformers.from_pretrained(), or register(store=...) first")
    return _loading.session, _loading.way


@contextlib.contextmanager
def _patched():
    """While at least one is active, models with experts_implementation="expertfs" are made without experts."""
    global _uses
    with _lock:
        _uses += 1
        PreTrainedModel.post_init = _patched_post_init
        ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    try:
        yield
    finally:
        with _lock:
            _uses -= 1
            if _uses == 0:
                PreTrainedModel.post_init = _post_init


@contextlib.contextmanager
def using(session, way: str = "coded"):
    """Within the block, from_pretrained(..., experts_implementation="expertfs") of transformers takes experts from this
    session, on this thread."""
    if way not in WAYS:
        raise ValueError(f"way={way!r}: {' or '.join(WAYS)}")
    register()
    with _patched():
        _loading.session, _loading.way = session, way
        try:
            yield
        finally:
            del _loading.session, _loading.way


def register() -> None:
    """Makes experts_implementation="expertfs" known to transformers."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)


# ---- running ----

@torch.compiler.disable(reason="expertfs: experts of a store are run by the library, which fullgraph=True cannot trace")
def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """The forward of an experts' module: [tokens, hidden], [tokens, K], [tokens, K] -> [tokens, hidden]."""
    binding = getattr(self, "_expertfs", None)
    if binding is None:
        raise Error(errno.EINVAL, "the model was not loaded by expertfs.transformers, so that its experts have no store")
    if torch.is_grad_enabled() and hidden_states.requires_grad:
        raise ValueError("expertfs: experts of a store are not trained: use torch.no_grad()")
    run = _run_coded if binding.way == "coded" else _run_full
    return run(self, binding, hidden_states.detach(), top_k_index, top_k_weights.detach())


def _run_coded(module, binding, hidden_states, top_k_index, top_k_weights):
    x = hidden_states.contiguous()
    out = torch.empty_like(x) if x.dtype != torch.float16 else torch.empty_like(x, dtype=torch.float32)
    if top_k_weights.dtype not in (torch.float32, torch.bfloat16):
        top_k_weights = top_k_weights.float()
    binding.session.ffn(binding.layer, x, top_k_index.contiguous(), top_k_weights.contiguous(), out, act=binding.act,
                        form="any", stack=binding.stack)
    return out.to(x.dtype)


def _run_expert(module, expert, x):
    def product(role, of):
        return torch.nn.functional.linear(of, torch.from_dlpack(expert[role]).to(of.dtype))
    fused = "gate_up" in expert
    gate_up = product("gate_up", x) if fused else torch.cat((product("gate", x), product("up", x)), dim=-1)
    return product("down", module._apply_gate(gate_up))


def _run_full(module, binding, hidden_states, top_k_index, top_k_weights):
    """The products of torch in the order of the experts' numbers, as transformers' eager implementation has them."""
    chosen, counts = torch.unique(top_k_index, return_counts=True)
    outputs = {}
    if len(chosen):
        for expert in binding.session.request(binding.layer, chosen.tolist(), counts.tolist(), stack=binding.stack):
            k, token = torch.where((top_k_index == expert.number).T)
            x = hidden_states[token]
            outputs[expert.number] = token, _run_expert(module, expert, x) * top_k_weights[token, k, None]
            del expert
    result = torch.zeros_like(hidden_states)
    for number in sorted(outputs):
        token, output = outputs[number]
        result.index_add_(0, token, output.to(result.dtype))
    return result


# ---- loading ----

def _refuse(model, method: str, why: str, unless=lambda *args, **kwargs: False) -> None:
    original = getattr(model, method)

    def refused(*args, **kwargs):
        if unless(*args, **kwargs):
            return original(*args, **kwargs)
        raise Error(errno.EOPNOTSUPP, f"{method}(): {why}")
    object.__setattr__(model, method, refused)


def _refuse_what_needs_parameters(model) -> None:
    _refuse(model, "save_pretrained", "the experts are in a store, not in the model: copy the checkpoint")
    _refuse(model, "train", "experts of a store are not trained", lambda mode=True: not mode)
    _refuse(model, "to", "experts of a store have its type, and are run on the CPU", lambda *args, **kwargs: all(
        str(value) in ("cpu", str(model.dtype)) or isinstance(value, bool) for value in [*args, *kwargs.values()]))
    for method in ("half", "float", "bfloat16", "double", "cuda"):
        _refuse(model, method, "experts of a store have its type, and are run on the CPU")
    for method in ("add_adapter", "load_adapter"):
        _refuse(model, method, "experts of a store take no adapters")


def _same_model(path: str, session) -> None:
    """Refuses the store of another model, by its config.json."""
    with open(os.path.join(path, "config.json"), "rb") as file:
        if file.read() != session.read("config.json"):
            raise Error(errno.EINVAL, f"{session.path}: it is not the store of {path}: config.json differs")


def from_pretrained(path, store=None, budget=None, *, way: str = "coded", auto_class=None, **kwargs):
    """A model of transformers whose experts come from a store.

    path: a checkpoint's folder, or a mount; store: a store of it (None: path itself). budget: of the store, as for
    expertfs.open(). way: "coded", the library's product, which reads experts in the form in which they are in memory,
    for silu; "full", torch's products on decoded experts, for any activation, with the bits of the eager implementation.
    auto_class: default transformers.AutoModelForCausalLM; other arguments are those of its from_pretrained(). The
    session is model.expertfs; close it after the model's last use.

    OSError: ENOENT, EINVAL: a store of another model; EOPNOTSUPP: experts or an activation that are not run; MemoryError:
    the budget is below its minimum."""
    path = os.fspath(path)
    for argument in ("device_map", "tp_plan", "quantization_config", "distributed_config"):
        if kwargs.get(argument) not in (None, "cpu"):
            raise Error(errno.EOPNOTSUPP, f"{argument}: a model with experts of a store runs whole, on the CPU")
    session = _session.open(store if store is not None else path, budget)
    try:
        if store is not None:
            _same_model(path, session)
        with using(session, way):
            model = (auto_class or transformers.AutoModelForCausalLM).from_pretrained(path, experts_implementation=NAME, **kwargs)
        if not _bindings(model):
            raise Error(errno.EOPNOTSUPP, f"{type(model).__name__} has no experts that transformers dispatches")
        _refuse_what_needs_parameters(model)
    except BaseException:
        session._close()
        raise
    model.expertfs = session
    return model
