#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mkmodel - write a mixture-of-experts checkpoint of random weights with the names, shapes and files of a real one."""
import argparse
import functools
import glob
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import struct
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

from families import FAMILIES, PRESETS, SIZES

# In the sources the numpy of tools/setup-python comes first: the tests do not depend on what else is installed.
VENV = os.path.abspath(os.path.join(os.path.realpath(__file__), "../../../build/venv"))
HAS_NUMPY = glob.glob(f"{VENV}/lib/python3*/site-packages/numpy/__init__.py")
if __name__ == "__main__" and HAS_NUMPY and sys.executable != f"{VENV}/bin/python":
    os.execv(f"{VENV}/bin/python", [f"{VENV}/bin/python", *sys.argv])
try:
    import numpy as np
except ImportError:
    np = None  # --help needs none

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
# A tensor in a file: parts are the tensors of the family that it contains, concatenated. precision: values are rounded
# to it before they are stored as dtype. rope: head size, for interleaving the rows of each head as in llama.cpp
Stored = namedtuple("Stored", "name dtype shape parts precision rope", defaults=("", 0))


def fail(text):
    sys.exit(f"mkmodel: {text}")


def bytes_of(stored):
    return math.prod(stored.shape) * BYTES[stored.dtype]


# ---- weights ---------------------------------------------------------------------------------------------------------

@functools.cache
def quantiles(freedom):
    """2^16 equally likely values of unit variance: of Student's t distribution, or normal if freedom is 0."""
    x = np.sinh(np.linspace(-8, 8, 1 << 17))
    mass = (np.exp(-x * x / 2) if not freedom else (1 + x * x / freedom) ** (-(freedom + 1) / 2)) * np.gradient(x)
    below = (np.cumsum(mass) - mass / 2) / mass.sum()
    unit = math.sqrt(freedom / (freedom - 2)) if freedom else 1
    return np.interp((np.arange(65536) + 0.5) / 65536, below, x / unit).astype(np.float32)


def round_bf16(x):
    return ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def widen(words):
    """Converts BF16 to float32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def kind_of(name, dims):
    """The kind of a tensor, by its name. Weights are drawn from tensors of the same kind."""
    name = name.lower()
    if dims < 2 or "bias" in name:
        return "norm" if "bias" not in name and ("norm" in name or "ln_" in name) else "bias"
    if any(word in name for word in ("emb", "wte", "shared.weight")):
        return "embedding"
    return "attention" if "attn" in name or "attention" in name else "matrix"


class Samples:
    """The tensors of a safetensors checkpoint. Values are drawn with their frequency in a tensor."""
    TYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}

    def __init__(self, path):
        self.path, self.tensors = path, []  # (kind, elements, type, file, offset)
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors")) if os.path.isdir(path) else [""]
        for file in (os.path.join(path, name).rstrip("/") for name in names):
            try:
                if not os.path.isfile(file):
                    raise OSError("No such file" if not os.path.exists(file) else "not a regular file")
                self.add_file(file)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, struct.error) as error:
                fail(f"--weights: {file}: not a safetensors file: {getattr(error, 'strerror', None) or error}")
        if not any(kind not in ("norm", "bias") for kind, *_ in self.tensors):
            fail(f"--weights: {path}: no tensor of two dimensions holds floats")

    def add_file(self, path):
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
        for name, about in header.items():
            if name == "__metadata__" or about["dtype"] not in self.TYPES or not math.prod(about["shape"]):
                continue
            kind, elements = kind_of(name, len(about["shape"])), math.prod(about["shape"])
            offset, dtype = 8 + length + about["data_offsets"][0], self.TYPES[about["dtype"]]
            np.memmap(path, dtype, "r", offset, (elements,))  # raises ValueError past the end
            self.tensors.append((kind, elements, dtype, path, offset))

    def choose(self, kind, random):
        """The values for a tensor: those of a random tensor of its kind, with probability by size, or of any matrix if
        the kind of matrix is missing. None: the checkpoint has no norms, or no biases."""
        found = [tensor for tensor in self.tensors if tensor[0] == kind]
        if not found and kind not in ("norm", "bias"):
            found = [tensor for tensor in self.tensors if tensor[0] not in ("norm", "bias")]
        place = int(random.integers(max(1, sum(elements for _, elements, *_ in found))))
        for _, elements, *where in found:
            place -= elements
            if place < 0:
                return self.values(elements, *where)
        return None

    @functools.cache
    def values(self, elements, dtype, path, offset):
        """2^16 quantiles of the tensor's values in BF16, as float32; of a large tensor 64 pieces are read."""
        data, piece = np.memmap(path, dtype, "r", offset, (elements,)), 65536
        if elements > 64 * piece:
            data = np.concatenate([data[at:at + piece] for at in np.linspace(0, elements - piece, 64).astype(int)])
        with np.errstate(over="ignore"):
            words = data if dtype == "<u2" else round_bf16(data.astype(np.float32))
        words = words[words & 0x7f80 != 0x7f80]  # finite
        if not words.size:
            fail(f"--weights: {path}: no tensor of finite floats at offset {offset}")
        counts = np.cumsum(np.bincount(words, minlength=65536))
        places = (np.arange(65536) + 0.5) / 65536 * counts[-1]
        return widen(np.searchsorted(counts, places, "right").astype(np.uint16))


def values(m, tensor, precision):
    """Yields the tensor's values as float32, some rows at a time. They depend only on the seed and the tensor's
    name."""
    name = int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.SFC64([m.seed, name]))
    columns, weight = tensor.shape[-1], tensor.fill in ("linear", "matrix")
    rows = math.prod(tensor.shape) // columns
    kind = kind_of(tensor.name, 2) if weight else tensor.fill
    table = m.samples and m.samples.choose(kind, random)
    drawn, scale = table is not None, tensor.std
    if not drawn:
        # One tensor in eight has heavy tails, all with --weights=heavy; each row has a scale.
        tails = int(random.integers(3 if m.weights == "heavy" else 24))
        scaled = weight and m.weights != "normal"
        table = quantiles(4 + tails if scaled and tails < 3 else 0)
        if scaled:
            scale = np.exp(0.4 * random.standard_normal((rows, 1)) - 0.08).astype(np.float32) * np.float32(scale)
    step = max(128, (1 << 18) // columns // 128 * 128)  # a multiple of FP8 blocks and of heads
    for first in range(0, rows, step):
        count = min(step, rows - first) * columns
        x = table[random.integers(0, 1 << 64, -(-count // 4), np.uint64).view(np.uint16)[:count]].reshape(-1, columns)
        if not drawn:
            x *= scale[first:first + step] if np.ndim(scale) else np.float32(scale)
            x += np.float32(tensor.fill == "norm")
        elif precision != "BF16":  # uniform in the interval that BF16 rounds to the value
            noise = random.integers(-0x8000, 0x8000, x.shape, np.int32)
            x = (x.view(np.int32) + noise * (x != 0)).view(np.float32)
        yield x


def round_e4m3(x):
    """Converts float32 of at most 448 to bytes of E4M3, to nearest, ties to even."""
    bits = abs(x).view(np.uint32)
    normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    small = np.rint(abs(x) * np.float32(512)).astype(np.uint32)  # below 2^-6: multiples of 2^-9
    return np.where(bits < 121 << 23, small, normal).astype(np.uint8) | np.signbit(x).astype(np.uint8) << 7


def fp8_blocks(x):
    """Converts to E4M3 in blocks of 128 x 128 whose largest value becomes 448. Returns values and scales."""
    rows, columns = x.shape
    largest = np.maximum.reduceat(np.maximum.reduceat(abs(x), range(0, rows, 128)), range(0, columns, 128), axis=1)
    scales = np.maximum(largest, np.float32(2.0 ** -100)) / 448
    every = np.repeat(np.repeat(scales, 128, 0)[:rows], 128, 1)[:, :columns]
    return round_e4m3(x / every), scales


def data_of(m, stored):
    """Yields the tensor's bytes in pieces."""
    for tensor in stored.parts:
        for x in values(m, tensor, stored.precision):
            if stored.rope:
                x = x.reshape(-1, 2, stored.rope // 2, x.shape[1]).swapaxes(1, 2)
            if stored.precision == "F8_E4M3":
                yield fp8_blocks(x)[stored.dtype == "F32"].tobytes()
                continue
            if stored.precision != "F32":
                with np.errstate(over="ignore"):
                    rounded = round_bf16(np.ascontiguousarray(x)) if stored.precision == "BF16" else x.astype(np.float16)
                x = rounded if stored.dtype == stored.precision else \
                    widen(rounded) if stored.precision == "BF16" else rounded.astype(np.float32)
            yield x.tobytes()


# ---- the tokenizer ---------------------------------------------------------------------------------------------------

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MERGE = ["\u0120", "t"]  # one merge, a blank and a t, because readers require some
FIRST_SPECIAL = 257


def vocabulary(m):
    """A byte-level vocabulary as of GPT-2: a printable byte is its character, other bytes are characters from
    U+0100."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [chr(byte) for byte in printed] + [chr(256 + n) for n in range(256 - len(printed))] + ["".join(MERGE)]
    tokens += SPECIALS
    return tokens + [f"<|reserved_{n}|>" for n in range(m.vocab - len(tokens))]


def tokenizer_files(m):
    added = [{"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for text in SPECIALS]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: n for n, token in enumerate(vocabulary(m))}, "merges": [MERGE]}
    return {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [one | {"id": FIRST_SPECIAL + n} for n, one in enumerate(added)], "normalizer": None,
            "pre_tokenizer": level, "post_processor": level | {"trim_offsets": False},
            "decoder": level | {"add_prefix_space": True}, "model": model},
        "tokenizer_config.json": {
            "add_bos_token": False, "add_prefix_space": False,
            "added_tokens_decoder": {str(FIRST_SPECIAL + n): one for n, one in enumerate(added)},
            "bos_token": SPECIALS[0], "chat_template": CHAT, "clean_up_tokenization_spaces": False,
            "eos_token": SPECIALS[0], "model_max_length": m.context, "pad_token": SPECIALS[0],
            "tokenizer_class": "PreTrainedTokenizerFast"}}


# ---- formats: files are lists of (name, header, tensors with their offsets, bytes) ----------------------------------

def shards(tensors, limit):
    """Splits the tensors into parts of at most limit bytes; a larger tensor is a part alone."""
    parts, room = [[]], limit
    for stored in tensors:
        if parts[-1] and bytes_of(stored) > room:
            parts.append([])
            room = limit
        parts[-1].append(stored)
        room -= bytes_of(stored)
    return parts


def laid_out(tensors, alignment):
    """([(tensor, offset in the file's data)], size of the data)."""
    places, at = [], 0
    for stored in tensors:
        places.append((stored, at))
        at += -(-bytes_of(stored) // alignment) * alignment
    return places, at


def shard_name(part, parts, suffix):
    return f"model-{part + 1:05}-of-{parts:05}.{suffix}" if parts > 1 else f"model.{suffix}"


def safetensors_files(m):
    """The files as transformers saves them: tensors sorted by type, larger first, then by name; headers padded to 8
    bytes."""
    tensors, fp8 = [], m.dtype == "F8_E4M3"
    for tensor in m.family.tensors(m):
        scaled = fp8 and tensor.fill == "linear"
        dtype = "BF16" if fp8 and not scaled else m.dtype
        tensors.append(Stored(tensor.name, dtype, tensor.shape, [tensor], dtype))
        if scaled:
            blocks = tuple(-(-size // 128) for size in tensor.shape)
            tensors.append(Stored(tensor.name + "_scale_inv", "F32", blocks, [tensor], dtype))
    files, index = [], {}
    parts = shards(tensors, m.shard or 5_000_000_000)
    for number, part in enumerate(parts):
        name = shard_name(number, len(parts), "safetensors")
        places, size = laid_out(sorted(part, key=lambda one: (-BYTES[one.dtype], one.name)), 1)
        header = json.dumps({"__metadata__": {"format": "pt"}} | {
            stored.name: {"dtype": stored.dtype, "shape": stored.shape, "data_offsets": [at, at + bytes_of(stored)]}
            for stored, at in places}, separators=(",", ":"))
        header += " " * (-len(header) % 8)
        files.append((name, struct.pack("<Q", len(header)) + header.encode(), places, size))
        index |= {stored.name: name for stored in part}
    end, names = FIRST_SPECIAL, ("bos_token_id", "eos_token_id", "pad_token_id")
    common = {name: end for name in names} | {"transformers_version": "4.57.0"}
    config = m.family.config(m)
    if "decoder_start_token_id" in config:
        common["decoder_start_token_id"] = end
    config |= common | {"torch_dtype": {"F16": "float16", "F32": "float32"}.get(m.dtype, "bfloat16"),
                        "vocab_size": m.vocab, "mkmodel": {"family": m.family_name, "seed": m.seed}}
    if fp8:
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [128, 128]}
    texts = {"config.json": config, "generation_config.json": {"do_sample": False} | common} | tokenizer_files(m)
    if len(parts) > 1:
        texts["model.safetensors.index.json"] = {"metadata": {"total_size": sum(map(bytes_of, tensors))},
                                                 "weight_map": dict(sorted(index.items()))}
    return files + [(name, (json.dumps(text, indent=2) + "\n").encode(), [], 0) for name, text in texts.items()]


GGUF_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
              "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
              "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate": "ffn_gate_inp",
              "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
              "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def gguf_tensors(m):
    """The tensors as llama.cpp's converter writes them: the experts of a layer stacked, norms and routers in F32, and
    for Mixtral the rows of q and k interleaved for RoPE."""
    found = {}
    for tensor in m.family.tensors(m):
        words = tensor.name.split(".")
        name = GGUF_NAMES[words[-2]] + ".weight"
        if "layers" in words:
            name = f"blk.{words[2]}.{name}"
        found.setdefault(name, []).append(tensor)
    for name, parts in found.items():
        shape = parts[0].shape if "_exps" not in name else (len(parts), *parts[0].shape)
        wide = len(shape) == 1 or "ffn_gate_inp" in name
        rope = m.head_dim if m.family_name == "mixtral" and name.split(".")[-2] in ("attn_q", "attn_k") else 0
        yield Stored(name, "F32" if wide else m.dtype, shape, parts, m.dtype, rope)


def gguf_keys(m):
    qwen = m.family_name == "qwen3-moe"
    architecture, tokens = "qwen3moe" if qwen else "llama", vocabulary(m)
    special = range(FIRST_SPECIAL, FIRST_SPECIAL + len(SPECIALS))
    sizes = {"block_count": m.layers, "context_length": m.context, "embedding_length": m.hidden,
             "feed_forward_length": m.dense_inner, "attention.head_count": m.heads,
             "attention.head_count_kv": m.kv_heads, "attention.key_length": m.head_dim,
             "attention.value_length": m.head_dim, "expert_count": m.experts, "expert_used_count": m.used,
             "vocab_size": m.vocab, "rope.freq_base": 1e6,
             "attention.layer_norm_rms_epsilon": 1e-6 if qwen else 1e-5,
             **({"expert_feed_forward_length": m.inner} if qwen else {"rope.dimension_count": m.head_dim})}
    return {
        "general.architecture": architecture, "general.type": "model",
        "general.name": f"mkmodel {m.family_name} seed {m.seed}",
        "general.file_type": {"BF16": 32, "F16": 1, "F32": 0}[m.dtype], "general.quantization_version": 2,
        "general.alignment": 32, **{f"{architecture}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1 if n < FIRST_SPECIAL else 3 if n in special else 5 for n in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(MERGE)], "tokenizer.ggml.bos_token_id": FIRST_SPECIAL,
        "tokenizer.ggml.eos_token_id": FIRST_SPECIAL, "tokenizer.ggml.padding_token_id": FIRST_SPECIAL,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": CHAT}


def gguf_value(value, kind=None):
    """(type, bytes) of a value: U32, F32, BOOL, STRING, ARRAY of strings or of I32; kind sets another type."""
    number, form = kind or {bool: (7, "?"), int: (4, "I"), float: (6, "f"), str: (8, ""), list: (9, "")}[type(value)]
    if isinstance(value, str):
        return number, struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value, list):
        each = [gguf_value(one, (5, "i") if isinstance(one, int) else None) for one in value]
        return number, struct.pack("<IQ", each[0][0], len(value)) + b"".join(data for _, data in each)
    return number, struct.pack("<" + form, value)


def gguf_files(m):
    """One file, or several if --shard-size is given."""
    tensors, files = list(gguf_tensors(m)), []
    parts = shards(tensors, m.shard or 1 << 60)
    if len(parts) > 65535:
        fail("--shard-size: a GGUF has at most 65535 parts")
    for number, part in enumerate(parts):
        fields = [(key, *gguf_value(value)) for key, value in (gguf_keys(m) if number == 0 else {}).items()]
        if len(parts) > 1:
            fields += [("split.no", *gguf_value(number, (2, "H"))), ("split.count", *gguf_value(len(parts), (2, "H"))),
                       ("split.tensors.count", *gguf_value(len(tensors), (5, "i")))]
        places, size = laid_out(part, 32)
        header = b"GGUF" + struct.pack("<IQQ", 3, len(part), len(fields))
        header += b"".join(gguf_value(key)[1] + struct.pack("<I", kind) + data for key, kind, data in fields)
        for stored, at in places:
            header += gguf_value(stored.name)[1] + struct.pack(
                f"<I{len(stored.shape)}QIQ", len(stored.shape), *reversed(stored.shape),
                {"F32": 0, "F16": 1, "BF16": 30}[stored.dtype], at)
        files.append((shard_name(number, len(parts), "gguf"), header + bytes(-len(header) % 32), places, size))
    return files


# ---- from options to files -------------------------------------------------------------------------------------------

def write_at(fd, data, offset):
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def write_tensor(m, fd, stored, offset):
    for data in data_of(m, stored):
        write_at(fd, data, offset)
        offset += len(data)


def write_files(m, files):
    """Writes the files; each is synced and dropped from the page cache before the next one."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, header, places, size in files:
            fd = os.open(os.path.join(m.out, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                os.posix_fallocate(fd, 0, len(header) + size)
                write_at(fd, header, 0)
                jobs = [pool.submit(write_tensor, m, fd, stored, len(header) + at) for stored, at in places]
                try:
                    for job in jobs:
                        job.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                if size:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def count(text):
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise ValueError
    return int(text)


def seed(text):
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError
    return int(text)


def size(text):
    found = re.fullmatch(r"([0-9]{1,15})(?:(\.[0-9]+)?([KMGT])(?:i?B)?)?", text, re.I)
    bytes_ = found and int(float(found[1] + (found[2] or "")) * 1024 ** " KMGT".index((found[3] or " ").upper()))
    if not bytes_ or bytes_ > 1 << 50:
        raise ValueError
    return bytes_


def arguments():
    parser = argparse.ArgumentParser(
        "mkmodel", description=__doc__.split(" - ")[1], epilog="Presets: demo (qwen3-moe, about 1 GiB), replay (7 GiB), "
        "tiny-mixtral, tiny-qwen3-moe, tiny-deepseek-v2, tiny-gpt-oss, tiny-switch (a few MiB).")
    add = parser.add_argument
    add("out", metavar="OUT_DIR", help="a new or an empty directory")
    add("-F", "--family", choices=FAMILIES, metavar="NAME", help=", ".join(FAMILIES))
    add("--preset", choices=PRESETS, metavar="NAME", help="family and sizes at once; other options take precedence")
    add("--format", choices=("safetensors", "gguf"), default="safetensors", help="gguf: mixtral, qwen3-moe")
    add("--dtype", choices=("bf16", "f16", "f32", "fp8"), default="bf16",
        help="fp8: 128x128 block scales, qwen3-moe, deepseek-v2")
    add("--weights", default="scaled", metavar="KIND|FILE", help="scaled (default: normal, rows of different scales, some "
        "tensors with heavy tails), normal (one scale a tensor), heavy (heavy tails everywhere), or a safetensors file, or a "
        "directory of them, whose BF16 values are drawn from; ./NAME is a file of one of these names")
    add("--seed", type=seed, default=0, metavar="N", help="another seed, other weights")
    add("-l", "--layers", type=count, metavar="N", help="layers; of each stack for switch")
    add("-e", "--experts", type=count, metavar="N", help="experts a layer")
    add("--experts-per-token", dest="used", type=count, metavar="N")
    add("-d", "--hidden", type=count, metavar="N", help="hidden size")
    add("-i", "--intermediate", dest="inner", type=count, metavar="N", help="inner size of an expert")
    add("--vocab", type=count, metavar="N", help="tokens in the vocabulary")
    add("--shard-size", dest="shard", type=size, metavar="SIZE",
        help="tensors in a file, at most (default: 5000000000 of safetensors; one file of GGUF)")
    add("--size", type=size, metavar="SIZE", help="choose the number of layers so that all tensors come near this")
    m = parser.parse_args()
    if m.layers and m.size:
        parser.error("--layers and --size exclude each other")
    return m, parser.error


def choose_layers(m, refuse):
    """Sets the number of layers for --size, by the bytes that family.step layers add."""
    def total():
        return sum(math.prod(tensor.shape) * (1 if tensor.fill == "linear" and m.dtype == "F8_E4M3" else
                                              BYTES.get(m.dtype.replace("F8_E4M3", "BF16"), 2)) for tensor in m.family.tensors(m))
    m.layers = m.family.least
    base = total()
    m.layers += m.family.step
    steps = round(max(0, m.size - base) / (total() - base))
    if steps > 1000:
        refuse("--size: too large for layers of this size; choose larger experts")
    m.layers = m.family.least + steps * m.family.step


def complete(m, refuse):
    """Applies presets and defaults, checks the options, and derives the other sizes. refuse: parser.error()."""
    preset_family, preset = PRESETS.get(m.preset, (None, {}))
    m.family_name = m.family or preset_family
    if not m.family_name:
        refuse("--family or --preset is needed")
    m.family, defaults = FAMILIES[m.family_name], {"experts": 8, "hidden": 1024, "inner": 512, "vocab": 8192}
    for key in SIZES:
        if getattr(m, key) is None and not (key == "layers" and m.size) and not (key == "shard" and m.format == "gguf"):
            setattr(m, key, preset.get(key, defaults.get(key)))
    m.used = m.used or (1 if m.family_name == "switch" else 2 if m.experts < 8 else m.experts // 4)
    m.dtype = {"bf16": "BF16", "f16": "F16", "f32": "F32", "fp8": "F8_E4M3"}[m.dtype]
    checks = (
        (m.hidden % 32 or not 64 <= m.hidden <= 65536, "--hidden: a multiple of 32 from 64 to 65536 is needed"),
        (m.inner % 32 or m.inner > 262144, "--intermediate: a multiple of 32 up to 262144 is needed"),
        (not 320 <= m.vocab <= 1000000, "--vocab: from 320 to 1000000 is needed"),
        (not 2 <= m.experts <= 4096, "--experts: from 2 to 4096 are needed"),
        (m.used > m.experts, "--experts-per-token: more than there are experts"),
        (m.format == "gguf" and "gguf" not in m.family.formats, "--format=gguf: for mixtral and qwen3-moe only"),
        (m.dtype == "F8_E4M3" and (m.format == "gguf" or "fp8" not in m.family.formats),
         "--dtype=fp8: for qwen3-moe and deepseek-v2 in safetensors only"))
    for wrong, text in checks:
        if wrong:
            refuse(text)
    m.head_dim = 128 if m.hidden % 128 == 0 and m.hidden >= 1024 else 64 if m.hidden % 64 == 0 and m.hidden >= 256 else 32
    m.heads = m.hidden // m.head_dim
    m.kv_heads, m.dense_inner, m.context = m.heads // math.gcd(m.heads, m.family.heads), m.inner, 4096
    m.family.derive(m)
    if m.size:
        choose_layers(m, refuse)
    m.layers = m.layers or 4
    if m.layers < m.family.least or m.layers % m.family.step or m.layers > 1024:
        refuse(f"--layers: this family needs a multiple of {m.family.step} from {m.family.least} to 1024")


def main():
    m, refuse = arguments()
    if not np:
        setup = os.path.exists(os.path.abspath(f"{VENV}/../../tools/setup-python"))
        fail("numpy is missing\nhint: `apt install python3-numpy` as root; or `python3 -m pip install numpy` in a virtual environment, "
             f"and `python3 {shlex.quote(sys.argv[0])} ...` there" + (", or tools/setup-python" if setup else ""))
    complete(m, refuse)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if os.path.isdir(m.out) and os.listdir(m.out):
        fail(f"{m.out}: has files")
    m.samples = None if m.weights in ("scaled", "normal", "heavy") else Samples(m.weights)
    made = False
    try:
        os.makedirs(m.out, exist_ok=True)
        made = True
        write_files(m, gguf_files(m) if m.format == "gguf" else safetensors_files(m))
        made = False
    except OSError as error:
        fail(f"{m.out}: {error.strerror}")
    except KeyboardInterrupt:
        print("mkmodel: interrupted; nothing was left behind", file=sys.stderr)
        sys.exit(130)
    finally:
        if made:
            shutil.rmtree(m.out)


if __name__ == "__main__":
    main()
