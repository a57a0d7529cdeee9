# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers and Session.ffn() do with bad input, with PyTorch: a damaged expert, a daemon that is killed
while text is generated, inputs of another type or device, strided, with a gradient, empty."""
from package import *

try:
    import torch
    import transformers
except ImportError as why:
    skip(f"{why}: tools/setup-python torch installs it")
if int(transformers.__version__.split(".")[0]) < 5:
    skip(f"transformers {transformers.__version__}, 5 is needed")
import expertfs.transformers as moe

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
torch.manual_seed(5)
path = scratch("model")
HIDDEN, INNER, EXPERTS, K = 64, 48, 8, 3
transformers.AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig(
    vocab_size=503, hidden_size=HIDDEN, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=EXPERTS,
    num_experts_per_tok=K, moe_intermediate_size=INNER, decoder_sparse_step=1, norm_topk_prob=True, max_position_embeddings=4096,
    dtype="bfloat16", bos_token_id=1, eos_token_id=None, pad_token_id=0), dtype=torch.bfloat16).save_pretrained(path)
store = path + ".efs"
expertfs.pack(path, store)

print("-- inputs of ffn()")
x, idx, w = torch.randn(5, HIDDEN), torch.stack([torch.randperm(EXPERTS)[:K] for _ in range(5)]), torch.rand(5, K)
with expertfs.open(store, "128M", state=False) as session:
    want = session.ffn(1, x, idx, w)
    for what, kind, arguments, words in (
            ("x of another type", TypeError, (x.double(), idx, w), "x is of float64"),
            ("x that is strided", ValueError, (x.T.contiguous().T, idx, w), "x is strided: use .contiguous()"),
            ("x on another device", ValueError, (x.to("meta"), idx, w), "x is on meta"),
            ("x with a gradient", ValueError, (x.clone().requires_grad_(), idx, w), "torch.no_grad()"),
            ("w with a gradient", ValueError, (x, idx, w.clone().requires_grad_()), "torch.no_grad()"),
            ("idx of another type", TypeError, (x, idx.short(), w), "idx is of int16"),
            ("idx that is strided", ValueError, (x, idx.repeat_interleave(2, 1)[:, ::2], w), "idx is strided"),
            ("out on another device", ValueError, (x, idx, w, x.to("meta")), "out is on meta")):
        error = raised(kind, session.ffn, 1, *arguments)
        check(what, error and words in str(error), error)
    check("idx without a token", session.ffn(1, x[:0], idx[:0], w[:0]).shape == (0, HIDDEN))
    check("idx without an expert", not session.ffn(1, x, idx[:, :0].contiguous(), w[:, :0].contiguous()).any())
    check("rows with a gap, and contiguous ones of a strided x", all(torch.equal(session.ffn(1, one, idx, w), want) for one in (
        torch.cat((x, x), 1)[:, :HIDDEN], x.T.contiguous().T.contiguous())))
    bf16 = session.ffn(1, x.bfloat16(), idx, w)
    exact = session.ffn(1, x.bfloat16(), idx, w, torch.empty(5, HIDDEN))
    check("a result in bfloat16 is rounded once", bf16.dtype == torch.bfloat16 and torch.equal(bf16, exact.bfloat16()))

print("-- a damaged expert")
damaged = damaged_store(store, 1, 4)
if check("its bytes are found in the store", damaged):
    for way in ("coded", "full"):
        model = moe.from_pretrained(path, damaged, "128M", way=way)
        experts = next(one for name, one in model.named_modules() if hasattr(one, "_expertfs") and one._expertfs.layer == 1)

        def forward(*numbers):
            with torch.no_grad():
                return experts(x[:1].bfloat16(), torch.tensor([numbers]), torch.tensor([[.5] * len(numbers)], dtype=torch.bfloat16))
        error = raised(OSError, forward, 2, 4, 6)
        check(f"{way}: EUCLEAN with layer and expert, from the forward", error and error.errno == errno.EUCLEAN and
              error.strerror.startswith(f"{damaged}: layer 1, expert 4") and "\nhint: " in str(error), error)
        check("other experts still run", forward(2, 5, 6).isfinite().all() and forward(0, 1, 7).any())
        session = model.expertfs
        del model, experts, error
        session.close()

need_fuse()
print("-- a daemon that is killed while text is generated")
for way in ("coded", "full"):
    mount, ended = Mount(store, "budget=128M"), []
    model = moe.from_pretrained(mount.path, way=way)
    session = model.expertfs

    def generate(_):
        try:
            while True:
                model.generate(torch.tensor([[5, 6, 7]]), attention_mask=torch.ones(1, 3), max_new_tokens=200, do_sample=False)
        except OSError as why:
            ended.append((time.monotonic(), why.errno))
    thread = threading.Thread(target=generate, args=(0,), daemon=True)
    before = session.stats()["coded"] + session.stats()["leases"]
    thread.start()
    check("it runs", wait_until(lambda: session.stats()["coded"] + session.stats()["leases"] > before + 9))
    killed = time.monotonic()
    os.kill(mount.daemon.pid, signal.SIGKILL)
    thread.join(PATIENCE)
    check(f"{way}: EIO", len(ended) == 1 and ended[0][1] == errno.EIO, ended)
    note(f"after {ended[0][0] - killed:.2f} s" if ended else "never")
    del model
    session.close()
    mount.abandon()
done()
