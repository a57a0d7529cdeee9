# SPDX-License-Identifier: Apache-2.0
"""The example runtime and config.json: each key is handled as by an independent implementation, has no effect, or is
refused by name; the same for unsupported tensors."""
from e2e import *

CLIENT = os.path.join(ROOT, "tests/clients/qwen3_moe.py")
RUNMOE = program("runmoe")
TOKENS = "5,9,130,77,2,2,301,300,12,12,12,319,0"
base = make_model("base", "-F", "qwen3-moe", "-d", "64", "-i", "64", "-e", "4", "--experts-per-token", "2", "-l", "2", "--vocab", "320")
with open(os.path.join(base, "config.json")) as file:
    config = json.load(file)
with open(os.path.join(base, "model.safetensors"), "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    data = file.read()
header.pop("__metadata__", None)
LAYERS, HIDDEN, QUERIES, KEYS = 2, 64, config["num_attention_heads"] * config["head_dim"], config["head_dim"]
ABSENT = object()


def variant(name, keys, tensors={}, without=()):
    """A store of the model with these keys of config.json, more tensors ({name: elements}, F32), and without some."""
    path = scratch(name)
    shutil.copytree(base, path)
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump({key: value for key, value in {**config, **keys}.items() if value is not ABSENT}, file)
    ours, body = {}, b""
    numbers = random.Random(name)
    for tensor, entry in header.items():
        if tensor not in without:
            raw = data[slice(*entry["data_offsets"])]
            ours[tensor] = {**entry, "data_offsets": [len(body), len(body) + len(raw)]}
            body += raw
    for tensor, count in tensors.items():
        raw = struct.pack(f"<{count}f", *(numbers.gauss(0, 0.3) for _ in range(count)))
        ours[tensor] = {"dtype": "F32", "shape": [count], "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(ours).encode()
    text += b" " * (-len(text) % 8)
    os.remove(os.path.join(path, "model.safetensors"))  # may be a link to the base's file
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    return path, make_store(path)


def logits(store, *options):
    path = store + ".logits"
    ran = run(RUNMOE, store, "-p", TOKENS, "-n", 0, "--logits", path, *options)
    if ran.returncode:
        return ran.stderr.strip()
    with open(path, "rb") as file:
        return file.read()


expected = logits(variant("as-made", {})[1])
yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
biases = {f"model.layers.{layer}.self_attn.{which}_proj.bias": count for layer in range(LAYERS)
          for which, count in (("q", QUERIES), ("k", KEYS), ("v", KEYS), ("o", HIDDEN))}

print("-- obeyed")
pairs = []
for name, keys, tensors, without in (
        ("nothing but what is needed: defaults of transformers",
         {key: ABSENT for key in ("norm_topk_prob", "rope_theta", "rope_scaling", "rms_norm_eps", "attention_bias", "hidden_act")}, {}, ()),
        ("another theta in rope_parameters, as transformers 5 writes it",
         {"rope_theta": ABSENT, "rope_scaling": ABSENT, "num_experts": ABSENT, "num_local_experts": 4, "torch_dtype": ABSENT,
          "dtype": "bfloat16", "rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}}, {}, ()),
        ("YaRN in rope_parameters, as transformers 5 writes it",
         {"rope_theta": ABSENT, "rope_scaling": ABSENT,
          "rope_parameters": {**yarn, "type": "yarn", "rope_theta": 5e6, "original_max_position_embeddings": 128}}, {}, ()),
        ("YaRN in rope_scaling, as Qwen tells its users to write it", {"rope_scaling": yarn}, {}, ()),
        ("YaRN with its range and an attention factor; the positions of training are the model's",
         {"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 8, "beta_slow": 0.5,
                                                          "attention_factor": 0.7}}, {}, ()),
        ("tied embeddings", {"tie_word_embeddings": True}, {}, ("lm_head.weight",)),
        ("weights as the router gives them", {"norm_topk_prob": False}, {}, ())):
    path, store = variant(name, keys, tensors, without)
    got = logits(store)
    if check(f"{name}: runs", isinstance(got, bytes), got):
        check(f"{name}: changes the logits", got != expected)
        pairs.append(f"{path}={store}.logits")
compared = subprocess.run([os.environ.get("PYTHON", "/usr/bin/python3"), CLIENT, TOKENS, *pairs], capture_output=True, text=True)
print(compared.stdout.strip())
if compared.returncode == 77:
    note("not compared with an independent implementation")
else:
    check("the logits of each are those of numpy, and of mlx-lm where it has them", compared.returncode == 0, compared.stderr[-2000:])

print("-- without effect")
path, store = variant("harmless", {
    "sliding_window": 4096, "max_window_layers": 1, "layer_types": ["full_attention"] * LAYERS, "use_cache": False,
    "transformers_version": "5.23.0", "dtype": "bfloat16", "routed_scaling_factor": 1.0, "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": None, "router_aux_loss_coef": 0.5, "initializer_range": 1.0, "rope_scaling": {"rope_type": "default"},
    "id2label": {"0": "LABEL_0"}, "unsloth_fixed": True})
got = logits(store)
check("the same bits", got == expected, got if isinstance(got, str) else "other logits")

print("-- refused")
gelu = variant("gelu", {"hidden_act": "gelu"})[1]
capped = variant("capped", {"attn_logit_softcapping": 30.0})[1]
frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": 16 for layer in range(LAYERS)}
buffers = variant("buffers", {}, frequencies)[1]
odd_yarn = variant("odd-yarn", {"rope_scaling": {**yarn, "beta_middle": 3}})[1]
for what, told, store in (
        ("another activation", ('hidden_act', 'only "silu"'), gelu),
        ("a key that is not known", ("attn_logit_softcapping",), capped),
        ("tensors that are not known", (next(iter(frequencies)), "1 more"), buffers),
        ("an unknown key of RoPE", ("beta_middle",), odd_yarn),
        ("biases that no key names", ("model.layers.0.self_attn.q_proj.bias", "7 more"), variant("biases", {}, biases)[1]),
        ("biases of experts", ("mlp.experts.1.up_proj.bias",), variant("expert-bias", {}, {"model.layers.0.mlp.experts.1.up_proj.bias": 64})[1]),
        ("an adapter's tensor in an expert", ("mlp.experts.1.up_proj.lora_A.weight",),
         variant("expert-lora", {}, {"model.layers.0.mlp.experts.1.up_proj.lora_A.weight": 64})[1]),
        ("a bias of the router", ("mlp.gate.e_score_correction_bias",),
         variant("router-bias", {}, {"model.layers.1.mlp.gate.e_score_correction_bias": 4})[1]),
        ("a layer more than config.json has", ("model.layers.1.",), variant("layers", {"num_hidden_layers": 1})[1]),
        ("an output head beside tied embeddings", ("lm_head.weight",), variant("tied-twice", {"tie_word_embeddings": True})[1]),
        ("dynamic RoPE", ("rope_type", "dynamic"), variant("dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}})[1]),
        ("two thetas", ("rope_theta", "differ"), variant("thetas", {"rope_parameters": {"rope_theta": 5e6}})[1]),
        ("two scalings", ("rope_scaling", "differ"), variant("scalings", {"rope_parameters": yarn, "rope_scaling": {**yarn, "factor": 2.0}})[1]),
        ("no factor", ("factor", "missing"), variant("no-factor", {"rope_scaling": {"type": "yarn"}})[1]),
        ("no number of heads", ("num_attention_heads",), variant("no-heads", {"num_attention_heads": ABSENT})[1]),
        ("a number that is none", ("num_experts_per_tok", "whole number"), variant("text", {"num_experts_per_tok": "2"})[1]),
        *((f"{where}{key}: {value}", (key, told), variant(f"float-{key}-{value}", {"rope_scaling": {**yarn, key: value}} if where else
                                                          {key: value})[1])
          for where, key, value, told in (
              ("", "rms_norm_eps", float("nan"), "a number"), ("", "rms_norm_eps", float("inf"), "a number"),
              ("", "rope_theta", float("nan"), "rope_theta"), ("", "rope_theta", float("-inf"), "rope_theta"),
              ("rope_scaling.", "factor", float("inf"), "a number"), ("rope_scaling.", "beta_fast", float("nan"), "a number"),
              ("", "rms_norm_eps", {"__float__": "Infinity"}, "a number"),  # as transformers writes it: 42959
              ("", "num_experts", float("nan"), "whole number"), ("", "routed_scaling_factor", float("nan"), "only 1"))),
        *((f"{key}: {value}", (key,), variant(f"key-{key}", {key: value})[1]) for key, value in (
            ("use_sliding_window", True), ("attention_bias", True), ("layer_types", ["full_attention", "sliding_attention"]), ("partial_rotary_factor", 0.5),
            ("routed_scaling_factor", 2.5), ("decoder_sparse_step", 2), ("mlp_only_layers", [0]), ("num_local_experts", 5)))):
    got = logits(store)
    check(f"{what}: refused by name", isinstance(got, str) and all(word in got for word in told), got)

print("-- ignored")
for what, store, pattern in (("an activation", gelu, "hidden_act"), ("a key that is not known", capped, "attn_*"),
                             ("tensors by a pattern", buffers, "model.layers.*.inv_freq")):
    got = logits(store, f"--ignore={pattern}")
    check(f"{what}: as if it were not there", got == expected, got if isinstance(got, str) else "other logits")
got = logits(odd_yarn, "--ignore=rope_scaling.beta_*")
check("a key of RoPE", isinstance(got, bytes) and got != expected, got)

if os.path.exists("/dev/fuse"):
    print("-- on a mount")
    mount = Mount(buffers)
    check("a tensor is refused by name", next(iter(frequencies)) in str(logits(mount.path)))
    check("or ignored", logits(mount.path, "--ignore=*.inv_freq") == expected)
    mount.unmount()
done()
