#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkmodel: its files have the format of real checkpoints, their weights are distributed as requested and determined by
the seed; impossible requests are refused, and nothing is left behind."""
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

try:
    import ml_dtypes
    import numpy as np
    import safetensors
    from safetensors.numpy import save_file
except ImportError as missing:
    skip(f"{missing}; tools/setup-python basic installs it")

MKMODEL = program("mkmodel")
BF16 = np.dtype(ml_dtypes.bfloat16)
# Shapes of tensors as expressions of config.json's keys: pattern of the name, number of tensors, rows, columns
SHAPES = {
    "mixtral": ((r"experts\.\d+\.w[13]", "2*num_hidden_layers*num_local_experts", "intermediate_size", "hidden_size"),
                (r"experts\.\d+\.w2", "num_hidden_layers*num_local_experts", "hidden_size", "intermediate_size"),
                (r"block_sparse_moe\.gate", "num_hidden_layers", "num_local_experts", "hidden_size")),
    "qwen3_moe": ((r"experts\.\d+\.(gate|up)_proj", "2*num_hidden_layers*num_experts", "moe_intermediate_size", "hidden_size"),
                  (r"experts\.\d+\.down_proj", "num_hidden_layers*num_experts", "hidden_size", "moe_intermediate_size"),
                  (r"mlp\.gate", "num_hidden_layers", "num_experts", "hidden_size"),
                  (r"self_attn\.[qk]_norm", "2*num_hidden_layers", "head_dim"),
                  (r"q_proj", "num_hidden_layers", "num_attention_heads*head_dim", "hidden_size")),
    "deepseek_v2": ((r"mlp\.experts\.\d+\.(gate|up)_proj", "2*(num_hidden_layers-1)*n_routed_experts", "moe_intermediate_size",
                     "hidden_size"),
                    (r"shared_experts\.down_proj", "num_hidden_layers-1", "hidden_size",
                     "n_shared_experts*moe_intermediate_size"),
                    (r"layers\.0\.mlp\.down_proj", "first_k_dense_replace", "hidden_size", "intermediate_size"),
                    (r"kv_a_proj_with_mqa", "num_hidden_layers", "kv_lora_rank+qk_rope_head_dim", "hidden_size"),
                    (r"kv_b_proj", "num_hidden_layers", "num_attention_heads*(qk_nope_head_dim+v_head_dim)", "kv_lora_rank")),
    "gpt_oss": ((r"experts\.gate_up_proj", "num_hidden_layers", "num_local_experts", "hidden_size", "2*intermediate_size"),
                (r"experts\.gate_up_proj_bias", "num_hidden_layers", "num_local_experts", "2*intermediate_size"),
                (r"experts\.down_proj", "num_hidden_layers", "num_local_experts", "intermediate_size", "hidden_size"),
                (r"mlp\.router", "num_hidden_layers", "num_local_experts", "hidden_size"),
                (r"self_attn\.sinks", "num_hidden_layers", "num_attention_heads")),
    "switch_transformers": ((r"expert_\d+\.wi", "num_layers*num_experts", "d_ff", "d_model"),
                            (r"expert_\d+\.wo", "num_layers*num_experts", "d_model", "d_ff"),
                            (r"router\.classifier", "num_layers", "num_experts", "d_model")),
}


def make(name, *options):
    folder = scratch(name)
    shutil.rmtree(folder, ignore_errors=True)
    ran = run(MKMODEL, *options, folder)
    check(f"mkmodel {' '.join(map(str, options))}", ran.returncode == 0, ran.stderr)
    return folder


def contents(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def weights_of(files):
    return {name: data for name, data in files.items() if name.endswith((".safetensors", ".gguf"))}


def tensors_of(folder):
    """{name: (dtype, shape, bytes, file)} of all files."""
    found = {}
    for name, data in weights_of(contents(folder)).items():
        found |= {name: (about["dtype"], about["shape"], np.frombuffer(about["data"], np.uint8), file)
                  for file in [name] for name, about in safetensors.deserialize(data)}
    return found


def floats(folder):
    kinds = {"BF16": BF16, "F16": np.float16, "F32": np.float32}
    return {name: data.view(kinds[dtype]).astype(np.float32).reshape(shape)
            for name, (dtype, shape, data, _) in tensors_of(folder).items()}


def entropy(values):
    share = np.unique(values, return_counts=True)[1] / values.size
    return float(-(share * np.log2(share)).sum())


def looks_real(what, folder, dtype):
    """Checks index, names and shapes against config.json, and the entropy of exponents and of the other bits against
    trained weights."""
    tensors, config = tensors_of(folder), json.load(open(f"{folder}/config.json"))
    files = {file for *_, file in tensors.values()}
    index = f"{folder}/model.safetensors.index.json"
    if len(files) > 1:
        listed = json.load(open(index))
        check(f"{what}: the index", listed["weight_map"] == {name: file for name, (*_, file) in tensors.items()} and
              listed["metadata"]["total_size"] == sum(data.size for _, _, data, _ in tensors.values()))
    else:
        check(f"{what}: one file", files == {"model.safetensors"} and not os.path.exists(index))
    wrong = []
    for pattern, number, *shape in SHAPES[config["model_type"]]:
        found = [shape for name, (_, shape, *_) in tensors.items() if re.search(rf"\.{pattern}(\.weight)?$", name)]
        shape = [eval(size, {}, config) for size in shape]
        if len(found) != eval(number, {}, config) or any(list(one) != shape for one in found):
            wrong.append((pattern, len(found), found[:1], shape))
    check(f"{what}: shapes", not wrong, wrong)
    kinds = {kind for kind, *_ in tensors.values()}
    check(f"{what}: types", kinds == ({"F8_E4M3", "BF16", "F32"} if dtype == "F8_E4M3" else {dtype}), kinds)
    if dtype == "F8_E4M3":
        blocks = {name: [-(-size // 128) for size in shape] for name, (kind, shape, *_) in tensors.items() if kind == dtype}
        scales = {name.removesuffix("_scale_inv"): list(shape) for name, (_, shape, *_) in tensors.items() if "_scale_inv" in name}
        check(f"{what}: block scales", blocks == scales)
    word = np.concatenate([data for kind, shape, data, _ in tensors.values() if kind == dtype and len(shape) > 1])
    word = word.view({"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F8_E4M3": np.uint8}[dtype])
    exponent, rest = {"BF16": (word >> 7 & 255, word >> 8 & 128 | word & 127), "F16": (word >> 10 & 31, word >> 2 & 255),
                      "F32": (word >> 23 & 255, word & 255), "F8_E4M3": (word >> 3 & 15, word >> 4 & 8 | word & 7)}[dtype]
    full = 4 if dtype == "F8_E4M3" else 8
    # embeddings have another scale, so the entropy of all tensors together is a little above that of one
    check(f"{what}: entropy", 2.5 < entropy(exponent) < 3.2 and full - 0.06 < entropy(rest) <= full, (entropy(exponent), entropy(rest)))
    words = json.load(open(f"{folder}/tokenizer.json"))["model"]["vocab"]
    check(f"{what}: the vocabulary", sorted(words.values()) == list(range(config["vocab_size"])))


def without_ml_dtypes():
    """FP8 needs numpy alone, and rounds as ml_dtypes does."""
    fp8 = ("--preset=tiny-qwen3-moe", "--dtype=fp8")
    hidden = scratch("hidden")
    os.makedirs(hidden, exist_ok=True)
    with open(f"{hidden}/ml_dtypes.py", "w") as file:
        file.write("raise ImportError('hidden')")
    ran = run(MKMODEL, *fp8, scratch("alone"), env={**os.environ, "PYTHONPATH": hidden})
    check("fp8 without ml_dtypes", ran.returncode == 0, ran.stderr)
    check("fp8 without ml_dtypes: the same bytes", contents(scratch("alone")) == contents(make("with", *fp8)))
    sys.path.insert(0, os.path.dirname(os.path.realpath(MKMODEL)))
    from mkmodel import round_e4m3
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    for what, x in (("values", values), ("ties", (values[1:] + values[:-1]) / 2), ("zeros", np.array([0, -0.0], np.float32)),
                    ("others", np.random.default_rng(1).uniform(-448, 448, 1 << 16).astype(np.float32)),
                    ("small", np.random.default_rng(2).uniform(-2.0 ** -5, 2.0 ** -5, 1 << 16).astype(np.float32))):
        check(f"E4M3 of {what}", (round_e4m3(x) == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all())


def checkpoints():
    """Each family and type: the format of a real one, the same bytes on one core and on all, different ones for another
    seed."""
    for options, dtype in (
            ("--preset=tiny-mixtral", "BF16"), ("--preset=tiny-qwen3-moe", "BF16"), ("--preset=tiny-deepseek-v2", "BF16"),
            ("--preset=tiny-gpt-oss", "BF16"), ("--preset=tiny-switch", "BF16"), ("--preset=tiny-mixtral --format=gguf", None),
            ("--preset=tiny-qwen3-moe --format=gguf --dtype=f16", None), ("--preset=tiny-qwen3-moe --dtype=fp8", "F8_E4M3"),
            ("--preset=tiny-deepseek-v2 --dtype=fp8 --hidden=160 --intermediate=96", "F8_E4M3"),
            ("--preset=tiny-mixtral --format=gguf --shard-size=1M", None), ("--preset=tiny-qwen3-moe --dtype=f32", "F32"),
            ("--preset=tiny-gpt-oss --dtype=f16", "F16"),
            ("--family=qwen3-moe --layers=1 --hidden=1024 --intermediate=1024 --vocab=2048", "BF16")):
        folder = make("all", *options.split())
        alone = scratch("alone")
        shutil.rmtree(alone, ignore_errors=True)
        run("taskset", "-c", str(min(os.sched_getaffinity(0))), MKMODEL, *options.split(), alone)
        check(f"{options}: the same on one processor", contents(folder) == contents(alone))
        files, other = weights_of(contents(folder)), weights_of(contents(make("other", *options.split(), "--seed=1")))
        check(f"{options}: seed 1 gives other bytes", files.keys() == other.keys() and all(files[n] != other[n] for n in files))
        if "1M" in options or "tiny-switch" in options:
            check(f"{options}: files of at most 1 MiB", len(files) > 1 and max(map(len, files.values())) < 1060 << 10)
        if dtype:
            looks_real(options, folder, dtype)
    sized = sum(map(len, contents(make("sized", "--family=qwen3-moe", "--size=60M")).values()))
    check("--size", 50e6 < sized < 70e6, sized)


def kinds():
    """Rows of normal weights have one scale, those of the other kinds many; the tails are as heavy as documented."""
    rows, tails, first = {}, {}, {}
    for kind in ("normal", "scaled", "heavy"):
        folder = make("kind", "--preset=tiny-qwen3-moe", f"--weights={kind}")
        first[kind] = contents(folder)
        experts = [w for name, w in floats(folder).items() if ".experts." in name]
        rows[kind] = np.median([w.std(1).std() / w.std() for w in experts])
        tails[kind] = np.mean(np.abs(np.concatenate([(w / w.std(1, keepdims=True)).ravel() for w in experts])) > 4) * 1e6
    check("rows have scales", rows["normal"] < 0.1 < 0.2 < min(rows["scaled"], rows["heavy"]), rows)
    # normal: 63 in a million exceed 4 deviations; Student's t with 4 to 6 degrees of freedom has some 2,500
    check("tails", tails["normal"] < 150 and tails["heavy"] > max(1000, 2 * tails["scaled"]), tails)
    check("scaled is the default", contents(make("default", "--preset=tiny-qwen3-moe")) == first["scaled"])


SHARES = {-1.5: 0.5, 0.0: 0.2, 2.0 ** -120: 0.2, 0.15625: 0.09, 3.0e38: 0.01}
SMALL = ("--family=qwen3-moe", "--layers=2", "--hidden=256", "--intermediate=256")


def given(dtype):
    """A checkpoint with few values in known shares; values that are not finite do not count."""
    matrix = np.random.default_rng(5).choice(np.array(list(SHARES), np.float32), size=(512, 512), p=list(SHARES.values()))
    matrix[0, :3] = np.inf, -np.inf, np.nan
    save_file({"a.mlp.down.weight": matrix.astype(dtype), "a.self_attn.k.weight": np.full((64, 64), -2.5, dtype),
               "embed.weight": np.full((64, 64), 4.0, dtype), "a.norm.weight": np.full(64, 1.25, dtype),
               "a.norm.bias": np.full(64, -0.75, dtype), "a.ids": np.arange(64)}, scratch("few.safetensors"))
    return f"--weights={scratch('few.safetensors')}"


def drawn():
    """The values of a given checkpoint are drawn with its shares, for each kind of tensor from its own kind."""
    for dtype in (BF16, np.float32, np.float64):
        found = floats(make("drawn", *SMALL, given(dtype)))
        experts = np.concatenate([w.ravel() for name, w in found.items() if ".experts." in name])
        wrong = {value: (np.mean(experts == np.float32(BF16.type(value))), share) for value, share in SHARES.items()
                 if abs(np.mean(experts == np.float32(BF16.type(value))) - share) > 6 * math.sqrt(share * (1 - share)) / 512 + 3e-5}
        check(f"{np.dtype(dtype)}: shares", not wrong and len(np.unique(experts)) == len(SHARES), (wrong, np.unique(experts)))
        for name, w in found.items():
            want = 4.0 if "embed_tokens" in name else -2.5 if "attn" in name and "norm" not in name else 1.25 if "norm" in name else None
            if want is not None and not np.all(w == want):
                check(f"{np.dtype(dtype)}: {name} is {want}", False, np.unique(w))
    wide = np.concatenate([w.ravel() for name, w in floats(make("drawn", *SMALL, given(BF16), "--dtype=f32")).items() if "q_proj" in name])
    check("F32: anywhere in what BF16 rounds to the value", np.all(wide.astype(BF16) == -2.5) and len(np.unique(wide)) > 1000)
    make("drawn", *SMALL, given(BF16), "--dtype=fp8")
    save_file({"x.weight": np.full((8, 8), 2.0, np.float16)}, scratch("one.safetensors"))
    found = floats(make("drawn", *SMALL, f"--weights={SCRATCH}/one.safetensors"))
    check("one matrix serves all", all(0.8 < w.mean() < 1.2 and w.std() > 0 if "norm" in name else np.all(w == 2.0)
                                       for name, w in found.items()))
    folder = make("given", "--preset=tiny-mixtral", "--weights=heavy")
    make("drawn", "--preset=tiny-mixtral", f"--weights={folder}")


def refused(what, status, word, *arguments):
    out = scratch("refused")
    ran = run(MKMODEL, *arguments, *([out] if status == 1 else []))
    check(f"{what}: refused", ran.returncode == status and word in ran.stderr and "Traceback" not in ran.stderr and not os.path.exists(out),
          (ran.returncode, ran.stderr))


def refusals():
    for wrong in ("", "a b", "--family=nobody a", "--preset=nobody a", "--dtype=f8 a", "--dtype=fp8 --family=mixtral a",
                  "--format=gguf --family=switch a", "--layers=0 --family=mixtral a", "--layers=-1 --family=mixtral a",
                  "--layers=1e3 --family=mixtral a", "--layers=3 --family=switch a", "--layers=1 --family=deepseek-v2 a",
                  "--hidden=100 --family=mixtral a", "--layers=2 --size=1G --family=mixtral a", "--size=nothing --family=mixtral a",
                  "--shard-size=5X --family=mixtral a", "--shard-size=99999T --family=mixtral a", "--vocab=100 --family=mixtral a",
                  "--experts=2 --experts-per-token=3 --family=mixtral a", "--seed=x --family=mixtral a"):
        refused(wrong, 2, "mkmodel", *wrong.split())
    for what, word, tensors in (("a bias", "two dimensions", {"x.bias": np.ones(8, np.float32)}),
                                ("NaN", "finite", {"x.weight": np.full((8, 8), np.nan, np.float32)}),
                                ("integers", "two dimensions", {"x.weight": np.ones((8, 8), np.int32)})):
        save_file(tensors, scratch("none.safetensors"))
        refused(what, 1, word, "--family=mixtral", f"--weights={SCRATCH}/none.safetensors")
    given(BF16)
    whole = open(scratch("few.safetensors"), "rb").read()
    os.mkfifo(scratch("pipe"))
    os.mkdir(scratch("empty"))
    for name, data in (("short", whole[:100]), ("cut", whole[:3000]), ("zero", bytes(4096)), ("text", b'"hello, world"')):
        open(scratch(name), "wb").write(data)
    for name, word in (("nowhere", "No such file"), ("short", ""), ("cut", ""), ("zero", ""), ("text", ""), ("pipe", "regular file"),
                       ("empty", "two dimensions")):
        refused(f"--weights: {name}", 1, word, "--preset=tiny-mixtral", f"--weights={scratch(name)}")


def places():
    """A directory with files is refused, an empty one accepted; a failed run leaves nothing."""
    full, empty = make("full", "--preset=tiny-mixtral"), scratch("empty/")
    before = contents(full)
    ran = run(MKMODEL, "--preset=tiny-mixtral", "--seed=1", full)
    check("files are not replaced", ran.returncode == 1 and "has files" in ran.stderr and contents(full) == before, ran)
    ran = run(MKMODEL, "--preset=tiny-mixtral", empty)
    check("an empty directory is taken", ran.returncode == 0 and contents(empty) == before, ran)
    for where in (os.path.join(full, "config.json"), "/proc/such"):
        ran = run(MKMODEL, "--preset=tiny-mixtral", where)
        check(f"{where}: refused", ran.returncode == 1 and "Traceback" not in ran.stderr, ran)
    small = scratch("small")
    os.mkdir(small)
    script = 'mount -t tmpfs -o size=4M none "$2" || exit 77; "$1" --family=mixtral --layers=4 "$2/m"; echo "$? $(ls "$2")"'
    ran = run("unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh", MKMODEL, small)
    if ran.returncode == 0:
        check("a full disk", ran.stdout == "1 \n" and "No space left" in ran.stderr, ran)
    else:
        note("no mount namespace here: the full disk is not tested")
    stop = scratch("stop")
    process = subprocess.Popen([MKMODEL, "--family=qwen3-moe", "--size=8G", stop], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (os.path.isdir(stop) and os.listdir(stop)):
        pass
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    check("SIGTERM", process.returncode == 130 and said == "mkmodel: interrupted; nothing was left behind\n" and not os.path.exists(stop),
          (process.returncode, said))


def page():
    """The man page has the options of --help."""
    with open(os.path.join(ROOT, "tools", "mkmodel", "mkmodel.1")) as file:
        told = set(re.findall(r"Fl -([a-z-]+)", file.read()))
    helped = set(re.findall(r"--([a-z-]+)", run(MKMODEL, "--help").stdout.split("options:")[1].split("Presets:")[0]))
    check("mkmodel(1) has the options of --help", told == helped, told ^ helped)


page()
without_ml_dtypes()
checkpoints()
kinds()
drawn()
refusals()
places()
done()
