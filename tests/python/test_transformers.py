# SPDX-License-Identifier: Apache-2.0
"""expertfs.transformers, with version 4 or 5 of transformers, on small random models of five families, made here: (a) full form,
torch's products: each block's output has the bits of transformers' eager implementation; (b) coded form, the library's products: for
each layer the error against float64 is not larger than eager's; (c) the same greedy tokens, or eager's two best logits are closer than
that error. And what is refused, and that loading leaves no patch."""
from package import *

try:
    import torch
    import transformers
except ImportError as why:
    skip(f"{why}: tools/setup-python torch installs it")
if not 4 <= int(transformers.__version__.split(".")[0]) <= 5:
    skip(f"transformers {transformers.__version__}, 4 or 5 is needed")
import expertfs.transformers as moe

V5 = transformers.__version__.startswith("5.")
EAGER = {"experts_implementation": "eager"} if V5 else {}
BY_NAME = {"experts_implementation": "expertfs"} if V5 else {}
note(f"transformers {transformers.__version__}, torch {torch.__version__}")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
SHARED = dict(vocab_size=503, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
              max_position_embeddings=256, initializer_range=.08, dtype="bfloat16", bos_token_id=1, eos_token_id=None, pad_token_id=0)
DEEPSEEK = {**SHARED, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
            "n_group": 1, "topk_group": 1}
FAMILIES = {
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**SHARED, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48,
                                                     decoder_sparse_step=1, norm_topk_prob=True),
    "mixtral": lambda: transformers.MixtralConfig(**SHARED, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": lambda: transformers.OlmoeConfig(**SHARED, num_experts=8, num_experts_per_tok=3),
    "deepseek-v2": lambda: transformers.DeepseekV2Config(**DEEPSEEK, topk_method="greedy"),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**DEEPSEEK),
}


def made(family):
    """A checkpoint of a family, and its store."""
    torch.manual_seed(5)
    path = scratch(family)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.bfloat16)
    model.save_pretrained(path)
    expertfs.pack(path, path + ".efs")
    return path, path + ".efs"


def blocks(model):
    return [module for module in model.modules() if hasattr(module, "experts") and hasattr(module, "gate")]


def first(output):
    return output[0] if isinstance(output, tuple) else output


def recorded(model, tokens):
    """[(input, output, the experts' part of the output)] of each block for these tokens."""
    calls, parts = {}, {}

    def keep(block):
        block.register_forward_hook(lambda _, args, output: calls.update({block: (args[0], first(output))}))
        if V5:
            block.experts.register_forward_hook(lambda _, args, output: parts.update({block: output}))
        elif hasattr(block, "moe"):
            block.moe = lambda *args, original=block.moe: parts.update({block: original(*args)}) or parts[block]
    for block in blocks(model):
        keep(block)
    with torch.no_grad():
        model(tokens)
    return [(*calls[block], parts.get(block, calls[block][1].view(-1, calls[block][1].shape[-1]))) for block in blocks(model)]


def matrices(block, number):
    """gate, up, down of eager's expert."""
    if V5:
        return *block.experts.gate_up_proj[number].chunk(2), block.experts.down_proj[number]
    expert = block.experts[number]
    return [getattr(expert, name).weight for name in (("w1", "w3", "w2") if hasattr(expert, "w1") else ("gate_proj", "up_proj", "down_proj"))]


def in_float64(block, x, idx, w):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for k in range(idx.shape[1]):
            gate, up, down = (one.double() for one in matrices(block, idx[t, k]))
            out[t] += w[t, k].double() * (down @ (torch.nn.functional.silu(gate @ x[t].double()) * (up @ x[t].double())))
    return out


def run_block(block, x):
    """A block's output, and arguments and output of its experts' module."""
    calls = []
    hook = block.experts.register_forward_hook(lambda _, args, output: calls.append((args, output)))
    with torch.no_grad():
        output = first(block(x))
    hook.remove()
    return output, *calls[0]


def greedy(model, prompt):
    """64 tokens, and the logits of each."""
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, output_logits=True,
                             return_dict_in_generate=True)
    return out.sequences[0, prompt.shape[1]:].tolist(), [one[0].float() for one in out.logits]


def same_tokens(wanted, ours, prompt):
    """Compares up to the first difference, where eager's two best logits must be closer than the logits' error."""
    (want, want_logits), (got, got_logits) = wanted, greedy(ours, prompt)
    for at, (a, b) in enumerate(zip(want, got)):
        if a != b:
            gap = (want_logits[at][a] - want_logits[at][b]).item()
            error = (want_logits[at] - got_logits[at]).abs().max().item()
            note(f"token {at}: eager's two logits differ by {gap:.4f}, ours from eager's by up to {error:.4f}")
            return gap <= error
    return len(want) == len(got) == 64


def check_family(family):
    print(f"-- {family}")
    path, store = made(family)
    eager = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", **EAGER).eval()
    prompts = [torch.randint(2, 503, (1, 12), generator=torch.Generator().manual_seed(n)) for n in range(5)]
    wanted = [greedy(eager, prompt) for prompt in prompts]
    calls = recorded(eager, prompts[0])
    for way in ("full", "coded"):
        model = moe.from_pretrained(path, store, "128M", way=way, dtype="auto")
        check(f"{way}: no parameters of experts, all others are eager's", len(blocks(model)) == len(calls) > 0 and
              not any(list(block.experts.parameters()) for block in blocks(model)) and
              all(torch.equal(parameter, dict(eager.named_parameters())[name]) for name, parameter in model.named_parameters()))
        bits = errors = True
        for block, reference, (x, output, part) in zip(blocks(model), blocks(eager), calls):
            got, arguments, ours = run_block(block, x)
            bits = bits and torch.equal(got, output)
            want = in_float64(reference, *arguments)
            error, theirs = ((one.double() - want).abs().mean().item() for one in (ours, part))
            errors = errors and error <= theirs
            if way == "coded":
                note(f"mean error against float64 {error:.3g}, eager's {theirs:.3g}")
        if way == "full":
            check("(a) full: each block's output has eager's bits", bits)
        else:
            check("(b) coded: no layer's error against float64 is larger than eager's", errors)
        check(f"(c) {way}: the same 64 greedy tokens for 5 prompts", all(same_tokens(*one) for one in zip(wanted, [model] * 5, prompts)))
        session = model.expertfs
        del model, block
        session.close()


for family in FAMILIES:
    check_family(family)

print("-- what is refused")
path, store = scratch("qwen3-moe"), scratch("qwen3-moe.efs")
model = moe.from_pretrained(path, store, "128M", dtype="auto")
for what, call in (("save_pretrained", lambda: model.save_pretrained(scratch("saved"))), ("another type", lambda: model.to(torch.float32)),
                   ("half()", model.half), ("train()", model.train), ("an adapter", lambda: model.add_adapter(None)),
                   ("cuda()", model.cuda), ("compile(fullgraph=True)", lambda: model.compile(fullgraph=True))):
    error = raised(OSError, call)
    check(what, error and error.errno == errno.EOPNOTSUPP and "store" in str(error), error)
check("its own type and eval() are not", model.to(torch.bfloat16) is model and model.to("cpu") is model and model.eval() is model)
error = raised(ValueError, lambda: model(torch.tensor([[1, 2]])))
check("a gradient", error and "no_grad" in str(error), error)
error = raised(Exception, lambda: torch.compile(model, fullgraph=True)(torch.tensor([[1, 2]]))) if hasattr(torch, "compile") else None
check("torch.compile(fullgraph=True)", error and "leave it out" in str(error), str(error)[:300])
with torch.no_grad():
    check("then it runs", model(torch.tensor([[1, 2]])).logits.isfinite().all())
model.expertfs.close()
tuned = scratch("tuned")
shutil.copytree(path, tuned)
for name in files_below(tuned):
    if name.endswith(".safetensors"):
        flip(f"{tuned}/{name}", os.path.getsize(f"{tuned}/{name}") // 8, count=os.path.getsize(f"{tuned}/{name}") // 2)
expertfs.pack(tuned, tuned + ".efs")
for what, other, differs in (("the store of another model", scratch("mixtral.efs"), "config.json"),
                             ("the store of a fine-tuned model, with the same config.json and headers", tuned + ".efs", ".safetensors")):
    error = raised(OSError, moe.from_pretrained, path, other, "128M")
    check(what, error and error.errno == errno.EINVAL and differs in str(error), error)


def refused(what, folder, text, number=errno.EINVAL, **more):
    error = raised(OSError, moe.from_pretrained, folder, store, "128M", **more)
    check(what, error and error.errno == number and text in str(error) and "hint: " in str(error), error)


def checkpoint(name, of, *left):
    """A folder with the config.json of the store's, and files of another one."""
    os.makedirs(scratch(name))
    for file in left:
        shutil.copy(f"{of}/{file}", scratch(name))
    return scratch(name)


other = transformers.AutoModelForCausalLM.from_pretrained(tuned, dtype="auto", **EAGER).state_dict()
old = checkpoint("old", path, "config.json")
torch.save(other, f"{old}/pytorch_model.bin")
refused("pytorch_model.bin of another model alone", old, "safetensors")
sharded = checkpoint("sharded", path, "config.json")
os.makedirs(f"{sharded}/part")
shutil.copy(f"{tuned}/model.safetensors", f"{sharded}/part")
json.dump({"metadata": {}, "weight_map": {name: "part/model.safetensors" for name in other}}, open(f"{sharded}/model.safetensors.index.json", "w"))
error = raised(OSError, moe.from_pretrained, sharded, store, "128M")
check("an index that is not the store's", error and error.errno == errno.EINVAL and "index.json" in str(error), error)
expertfs.pack(sharded, sharded + ".efs", force=True)
error = raised(OSError, moe.from_pretrained, sharded, sharded + ".efs", "128M")
check("an index that names files elsewhere", error and error.errno == errno.EINVAL and "part/model.safetensors" in str(error), error)
head = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").lm_head.weight
named = checkpoint("named", path, "model.safetensors")
json.dump({**json.load(open(f"{path}/config.json")), "transformers_weights": "adapter_model.bin"}, open(f"{named}/config.json", "w"))
expertfs.pack(named, named + ".efs")
error = raised(OSError, moe.from_pretrained, named, named + ".efs", "128M")
check("a config.json that names another file", error and error.errno == errno.EINVAL and "adapter_model.bin" in str(error), error)
both = checkpoint("both", path, *os.listdir(path))
torch.save(other, f"{both}/pytorch_model.bin")
model = moe.from_pretrained(both, store, "128M", dtype="auto")
check("of a folder with both kinds the safetensors are loaded", torch.equal(model.lm_head.weight, head))
model.expertfs.close()
for name, value in (("use_safetensors", False), ("gguf_file", "model.gguf"), ("from_tf", True), ("from_flax", True), ("subfolder", "part"),
                    ("variant", "fp16"), ("state_dict", {}), ("transformers_weights", "adapter_model.bin")):
    refused(f"weights by {name}", both, name, errno.EOPNOTSUPP, **{name: value})
refused("a name that is no folder", "some/model", "no folder")
json.dump({"base_model_name_or_path": tuned, "peft_type": "LORA"}, open(f"{both}/adapter_config.json", "w"))
check("a folder with an adapter of another model", fails_with(errno.EOPNOTSUPP, moe.from_pretrained, both, store, "128M"))
shutil.copytree(path, scratch("other"))
config = json.load(open(f"{path}/config.json"))
EXPERTS = "num_experts" if "num_experts" in config else "num_local_experts"
for what, key, value, number in (("another number of experts", EXPERTS, 6, errno.EINVAL), ("another size", "moe_intermediate_size", 64, errno.EINVAL),
                                 ("another activation, by the library", "hidden_act", "gelu", errno.EOPNOTSUPP)):
    json.dump({**config, key: value}, open(scratch("other/config.json"), "w"))
    check(what, fails_with(number, moe.from_pretrained, scratch("other"), None, "128M"))
check("another activation, by torch", moe.from_pretrained(scratch("other"), None, "128M", way="full").expertfs.close() is None)
if V5:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Class
    plain_gate = Class._apply_gate
    Class._apply_gate = lambda self, gate_up: plain_gate(self, gate_up.clamp(max=.1))  # as GLM-5 and DeepSeek-V4 do, with silu, too
    check("another gate with silu, by the library", fails_with(errno.EOPNOTSUPP, moe.from_pretrained, path, store, "128M"))
    check("another gate, by torch", moe.from_pretrained(path, store, "128M", way="full").expertfs.close() is None)
    Class._apply_gate = plain_gate
check("a device map", fails_with(errno.EOPNOTSUPP, moe.from_pretrained, path, store, "128M", device_map="auto"))
check("no such way", raised(ValueError, moe.from_pretrained, path, store, "128M", way="half"))
check("a budget below the minimum", raised(MemoryError, moe.from_pretrained, path, store, "1M"))
check("no patch is left", transformers.PreTrainedModel.post_init is moe._post_init)
plain = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
check("other models load as before", all(list(block.experts.parameters()) for block in blocks(plain)))
if V5:
    alone = transformers.AutoModelForCausalLM.from_pretrained(path, **BY_NAME)
    error = raised(OSError, alone, torch.tensor([[1, 2]]))
    check("registered alone it has no store", error and "store" in str(error), error)

print("-- by transformers' own call, on a mount")
if os.path.exists("/dev/fuse"):
    with expertfs.mount(store, budget="128M") as mounted:
        with expertfs.open(mounted) as session:
            with moe.using(session):
                model = transformers.AutoModelForCausalLM.from_pretrained(mounted, dtype="auto", **BY_NAME)
            with torch.no_grad():
                mine, other = (one(torch.tensor([[5, 6, 7]])).logits for one in (model, plain))
            check("it runs", (mine - other).abs().max().item() < .1, (mine - other).abs().max().item())
            del model
done()
