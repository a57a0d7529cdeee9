# SPDX-License-Identifier: Apache-2.0
"""expertfs.transformers on small random models of four families, made here: (a) full form, torch's products: each layer's
output has the bits of transformers' eager implementation; (b) coded form, the library's products: for each layer the
error against float64 is not larger than eager's; (c) the same greedy tokens, or eager's two best logits are closer than
that error. And what is refused, and that loading leaves no patch."""
from package import *

try:
    import torch
    import transformers
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as why:
    skip(f"{why}: tools/setup-python torch installs it")
if int(transformers.__version__.split(".")[0]) < 5:
    skip(f"transformers {transformers.__version__}, 5 is needed")
import expertfs.transformers as moe

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
SHARED = dict(vocab_size=503, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
              max_position_embeddings=256, initializer_range=.08, dtype="bfloat16", bos_token_id=1, eos_token_id=None, pad_token_id=0)
FAMILIES = {
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**SHARED, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48,
                                                     decoder_sparse_step=1, norm_topk_prob=True),
    "mixtral": lambda: transformers.MixtralConfig(**SHARED, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": lambda: transformers.OlmoeConfig(**SHARED, num_experts=8, num_experts_per_tok=3),
    "deepseek-v2": lambda: transformers.DeepseekV2Config(
        **{**SHARED, "num_key_value_heads": 4}, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=48, n_shared_experts=1, first_k_dense_replace=1,
        kv_lora_rank=16, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, topk_method="greedy", n_group=1, topk_group=1),
}


def made(family):
    """A checkpoint of a family, and its store."""
    torch.manual_seed(5)
    path = scratch(family)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.bfloat16)
    model.save_pretrained(path)
    expertfs.pack(path, path + ".efs")
    return path, path + ".efs"


def experts_modules(model):
    return [module for _, module in model.named_modules() if moe._is_experts(module)]


def recorded(model, tokens):
    """[(inputs, output)] of each experts' module for these tokens."""
    calls = []
    hooks = [module.register_forward_hook(lambda module, args, output: calls.append((args, output))) for module in experts_modules(model)]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return calls


def in_float64(module, x, idx, w):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for k in range(idx.shape[1]):
            gate, up = (module.gate_up_proj[idx[t, k]].double() @ x[t].double()).chunk(2)
            out[t] += w[t, k].double() * (module.down_proj[idx[t, k]].double() @ (torch.nn.functional.silu(gate) * up))
    return out


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
    eager = transformers.AutoModelForCausalLM.from_pretrained(path, experts_implementation="eager").eval()
    prompts = [torch.randint(2, 503, (1, 12), generator=torch.Generator().manual_seed(n)) for n in range(5)]
    calls, wanted = recorded(eager, prompts[0]), [greedy(eager, prompt) for prompt in prompts]
    for way in ("full", "coded"):
        model = moe.from_pretrained(path, store, "128M", way=way)
        modules = experts_modules(model)
        check(f"{way}: no parameters of experts, all others are eager's", len(modules) == len(calls) > 0 and
              not any(list(module.parameters()) for module in modules) and
              all(torch.equal(parameter, dict(eager.named_parameters())[name]) for name, parameter in model.named_parameters()))
        bits = errors = True
        for module, reference, (arguments, output) in zip(modules, experts_modules(eager), calls):
            with torch.no_grad():
                got = moe.experts_forward(module, *arguments)
            want = in_float64(reference, *arguments)
            bits = bits and torch.equal(got, output)
            ours, theirs = ((one.double() - want).abs().mean().item() for one in (got, output))
            errors = errors and ours <= theirs
            if way == "coded":
                note(f"mean error against float64 {ours:.3g}, eager's {theirs:.3g}")
        if way == "full":
            check("(a) full: each layer's output has eager's bits", bits)
        else:
            check("(b) coded: no layer's error against float64 is larger than eager's", errors)
        check(f"(c) {way}: the same 64 greedy tokens for 5 prompts", all(same_tokens(*one) for one in zip(wanted, [model] * 5, prompts)))
        session = model.expertfs
        del model, modules, module
        session.close()


for family in FAMILIES:
    check_family(family)

print("-- what is refused")
path, store = scratch("qwen3-moe"), scratch("qwen3-moe.efs")
model = moe.from_pretrained(path, store, "128M")
for what, call in (("save_pretrained", lambda: model.save_pretrained(scratch("saved"))), ("another type", lambda: model.to(torch.float32)),
                   ("half()", model.half), ("train()", model.train), ("an adapter", lambda: model.add_adapter(None)),
                   ("cuda()", model.cuda)):
    error = raised(OSError, call)
    check(what, error and error.errno == errno.EOPNOTSUPP and "store" in str(error), error)
check("its own type and eval() are not", model.to(torch.bfloat16) is model and model.to("cpu") is model and model.eval() is model)
error = raised(ValueError, lambda: model(torch.tensor([[1, 2]])))
check("a gradient", error and "no_grad" in str(error), error)
error = raised(Exception, lambda: torch.compile(model, fullgraph=True)(torch.tensor([[1, 2]]))) if hasattr(torch, "compile") else None
check("torch.compile(fullgraph=True)", error and "expertfs" in str(error), str(error)[:300])
with torch.no_grad():
    check("then it runs", model(torch.tensor([[1, 2]])).logits.isfinite().all())
model.expertfs.close()
for what, other in (("the store of another model", scratch("mixtral.efs")),):
    error = raised(OSError, moe.from_pretrained, path, other, "128M")
    check(what, error and error.errno == errno.EINVAL and "config.json" in str(error), error)
shutil.copytree(path, scratch("other"))
config = json.load(open(f"{path}/config.json"))
for what, key, value, number in (("another number of experts", "num_local_experts", 6, errno.EINVAL), ("another size", "moe_intermediate_size", 64, errno.EINVAL),
                                 ("another activation, by the library", "hidden_act", "gelu", errno.EOPNOTSUPP)):
    json.dump({**config, key: value}, open(scratch("other/config.json"), "w"))
    check(what, fails_with(number, moe.from_pretrained, scratch("other"), None, "128M"))
check("another activation, by torch", moe.from_pretrained(scratch("other"), None, "128M", way="full").expertfs.close() is None)
check("a device map", fails_with(errno.EOPNOTSUPP, moe.from_pretrained, path, store, "128M", device_map="auto"))
check("no such way", raised(ValueError, moe.from_pretrained, path, store, "128M", way="half"))
check("a budget below the minimum", raised(MemoryError, moe.from_pretrained, path, store, "1M"))
check("no patch is left", transformers.PreTrainedModel.post_init is moe._post_init)
plain = transformers.AutoModelForCausalLM.from_pretrained(path)
check("other models load as before", all(module.gate_up_proj.numel() for module in experts_modules(plain)))
error = raised(OSError, transformers.AutoModelForCausalLM.from_pretrained, path, experts_implementation="expertfs")
check("registered alone it has no store", error is None or "store" in str(error), error)

print("-- by transformers' own call, on a mount")
if os.path.exists("/dev/fuse"):
    with expertfs.mount(store, budget="128M") as mounted:
        with expertfs.open(mounted) as session:
            with moe.using(session):
                model = transformers.AutoModelForCausalLM.from_pretrained(mounted, experts_implementation="expertfs")
            with torch.no_grad():
                mine, other = (one(torch.tensor([[5, 6, 7]])).logits for one in (model, plain))
            check("it runs", (mine - other).abs().max().item() < .1, (mine - other).abs().max().item())
            del model
done()
