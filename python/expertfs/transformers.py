# SPDX-License-Identifier: Apache-2.0
"""Models of transformers (versions 4 and 5) with experts from a store: see expertfs-python(7).

    model = expertfs.transformers.from_pretrained("mnt")          # a mount
    model = expertfs.transformers.from_pretrained("model", store="model.efs", budget="8G")
    model = expertfs.transformers.from_pretrained("model", store="model.efs", device=0, device_budget="4G")

The experts' parameters are never made: a layer requests the experts of its tokens when it runs."""
from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import threading

import torch
import transformers
from transformers.modeling_utils import PreTrainedModel

from . import session as _session
from ._library import Error
from .experts_torch import Matrices, arrivals
from .same_model import check_same_model

if int(transformers.__version__.split(".")[0]) >= 5:
    from . import transformers5 as _version
else:
    from . import transformers4 as _version

WAYS = ("coded", "full")
COMMON = ("model", "language_model", "transformer", "backbone")  # parts of a name that do not distinguish stacks
OTHER_WEIGHTS = ("adapter_kwargs", "from_flax", "from_tf", "gguf_file", "state_dict", "subfolder", "transformers_weights",
                 "variant")  # arguments that select them
SILU = ("silu", "swish")
_loading = threading.local()  # the session and the way of a model that this thread is making
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
        tensors = layers[0].tensors()
        first = f".{layers[0].experts[0]}."
        #: How the names of the experts' tensors begin, in the model and in the checkpoint.
        self.prefixes = {name + "."} | {one.name[:one.name.rindex(first) + 1] if first in one.name else one.name for one in tensors}
        self._check(len(layers[0].experts), tensors, module)
        self.act = getattr(module.config, "hidden_act", None) or getattr(module.config, "hidden_activation", None)
        if way == "full":
            self.matrices = Matrices(name, tensors)
            self.arrivals = functools.partial(arrivals, self)
        elif self.act not in SILU or not _version.is_act_alone(module):
            raise Error(errno.EOPNOTSUPP, f"{name}: the library does not compute the activation of {type(module).__name__}, {self.act}"
                        "\nhint: way=\"full\"")

    def _check(self, experts: int, tensors, module) -> None:
        hidden, inner = module.hidden_dim, module.intermediate_dim
        shapes = {one.role: one.shape for one in tensors}
        want = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if "gate_up" in shapes:
            want = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        if experts != module.num_experts or shapes != want:
            there = ", ".join(f"{one.name} {list(one.shape)}" for one in tensors)
            raise Error(errno.EINVAL, f"{self.session.path}: layer {self.layer} has {experts} experts of {there}; {self.name} needs "
                        f"{module.num_experts} experts, gate and up {[inner, hidden]}, down {[hidden, inner]}")


def _patched_post_init(model) -> None:
    ours = _version.is_wanted(model, hasattr(_loading, "session"))
    if ours:
        if not hasattr(_loading, "session"):
            raise Error(errno.EINVAL, "experts_implementation=\"expertfs\": call expertfs.transformers.from_pretrained(), or load it within using()")
        for name, module in _version.take_experts(model):
            module._expertfs = Binding(_loading.session, _loading.way, name, module)
    _post_init(model)
    if ours:
        _version.ignore_unexpected(model, {re.escape(prefix) for binding in _bindings(model) for prefix in binding.prefixes})


def _bindings(model) -> list[Binding]:
    return [module._expertfs for module in model.modules() if hasattr(module, "_expertfs")]


@contextlib.contextmanager
def _patched():
    """While at least one is active, models that a thread makes within using() are made without experts."""
    global _uses
    with _lock:
        _uses += 1
        PreTrainedModel.post_init = _patched_post_init
    try:
        yield
    finally:
        with _lock:
            _uses -= 1
            if _uses == 0:
                PreTrainedModel.post_init = _post_init


@contextlib.contextmanager
def using(session, way: str = "coded"):
    """Within the block, from_pretrained() of transformers takes experts from this session, on this thread: of version 5 with
    experts_implementation="expertfs", of version 4 always."""
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
    _version.register()


# ---- loading ----

def _refuse(model, method: str, why: str, unless=lambda *args, **kwargs: False) -> None:
    original = getattr(model, method)

    def refused(*args, **kwargs):
        if unless(*args, **kwargs):
            return original(*args, **kwargs)
        raise Error(errno.EOPNOTSUPP, f"{method}(): {why}")
    object.__setattr__(model, method, refused)


def _refuse_what_needs_parameters(model, place: str) -> None:
    _refuse(model, "save_pretrained", "the experts are in a store, not in the model: copy the checkpoint")
    _refuse(model, "train", "experts of a store are not trained", lambda mode=True: not mode)
    _refuse(model, "compile", "experts of a store are run by the library, which fullgraph=True cannot trace: leave it out",
            lambda fullgraph=False, **kwargs: not fullgraph)
    why = f"experts of a store have its type, and are run on {'the CPU' if place == 'cpu' else place}"
    _refuse(model, "to", why, lambda *args, **kwargs: all(
        str(value) in (place, str(model.dtype)) or isinstance(value, bool) for value in [*args, *kwargs.values()]))
    for method in ("half", "float", "bfloat16", "double", "cuda" if place == "cpu" else "cpu"):
        _refuse(model, method, why)
    for method in ("add_adapter", "load_adapter"):
        _refuse(model, method, "experts of a store take no adapters")


def from_pretrained(path, store=None, budget=None, *, way: str | None = None, auto_class=None, device: int | None = None,
                    device_budget=None, **kwargs):
    """A model of transformers whose experts come from a store.

    path: a checkpoint's folder, or a mount; store: a store of it (None: path itself). budget: of the store, as for
    expertfs.open(); None, or a mount's auto: what is left after loading, less the other weights. way: "coded", the
    library's product, which reads experts in the form in which they are in memory, for silu (default); "full", torch's products on decoded experts, for any activation, with the bits of the eager
    implementation. device: the number of a graphics processor for which PyTorch has CUDA: the model is moved there, and
    experts are decoded there, into at most device_budget; with way="full" alone, the default then.
    auto_class: default transformers.AutoModelForCausalLM; other arguments are those of its from_pretrained(). The
    session is model.expertfs; close it after the model's last use.

    OSError: ENOENT, EINVAL: a store of another model; EOPNOTSUPP: experts or an activation that are not run; ENODEV:
    PyTorch or the library has no such device; MemoryError: the budget is below its minimum."""
    path = os.fspath(path)
    way = way or ("coded" if device is None else "full")
    place = "cpu" if device is None else f"cuda:{device}"
    if device is not None and way == "coded":
        raise Error(errno.EOPNOTSUPP, "way=\"coded\": the library's products are run on the CPU, not on device=\nhint: way=\"full\"")
    if device is not None and device not in range(torch.cuda.device_count()):
        raise Error(errno.ENODEV, f"device={device}: PyTorch sees {torch.cuda.device_count()} graphics processors")
    for argument in ("device_map", "tp_plan", "quantization_config", "distributed_config"):
        if kwargs.get(argument) not in (None, "cpu"):
            raise Error(errno.EOPNOTSUPP, f"{argument}: a model with experts of a store runs whole, on the CPU or on device=")
    for argument in OTHER_WEIGHTS:
        if kwargs.get(argument) not in (None, False, ""):
            raise Error(errno.EOPNOTSUPP, f"{argument}: weights that are not compared with the store\nhint: give the path of a folder of safetensors")
    if not kwargs.setdefault("use_safetensors", True):
        raise Error(errno.EOPNOTSUPP, "use_safetensors=False: weights that are not compared with the store\nhint: convert them to safetensors")
    if os.path.exists(os.path.join(path, "adapter_config.json")):
        raise Error(errno.EOPNOTSUPP, f"{path}: it has an adapter (adapter_config.json), which experts of a store do not take")
    session = _session.open(store if store is not None else path, budget, device=device, device_budget=device_budget)
    try:
        if store is not None:
            check_same_model(path, session)
        with using(session, way):
            model = (auto_class or transformers.AutoModelForCausalLM).from_pretrained(path, **_version.ARGUMENTS, **kwargs)
        if not _bindings(model):
            raise Error(errno.EOPNOTSUPP, f"{type(model).__name__} has no experts that this package runs")
        _refuse_what_needs_parameters(model if device is None else model.to(place), place)
        session.leave()
    except BaseException:
        session._close()
        raise
    model.expertfs = session
    return model
