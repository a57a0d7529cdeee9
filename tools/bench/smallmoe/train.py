#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train.py WORK: train a small mixture-of-experts model on WORK/train.txt and write it as a Qwen3-MoE checkpoint.

8 layers of 16 experts, 4 chosen, width 256, a vocabulary of 2048 tokens (byte-level BPE), 15 M weights. Trains for
--minutes, resumes from WORK/state.pt if it exists; SIGTERM ends training early. Writes WORK/model (config.json,
model.safetensors in BF16, tokenizer.json) and held-out text as token ids for runmoe:

    WORK/history-N.txt, held-N.txt    documents of the same kind as the training text
    WORK/other-N.txt                  another kind of text
"""
import argparse
import json
import math
import os
import signal
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LAYERS, EXPERTS, CHOSEN, WIDTH, INNER = 8, 16, 4, 256, 128
HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4, 2, 64, 2048
ROPE_BASE, EPSILON = 10000.0, 1e-6
LENGTH, BATCH = 256, 4  # tokens of a sequence, sequences of a step
BALANCE = 0.01  # weight of the load-balancing loss (Switch Transformers, Eq. 4)
RATE, WARMUP = 3e-3, 100
DOCUMENT_TOKENS = 512  # most tokens of a held-out document


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.weight


def linear(inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.02)
    return layer


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = linear(WIDTH, HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, WIDTH)
        self.k_proj, self.v_proj = linear(WIDTH, KV_HEADS * HEAD_DIM), linear(WIDTH, KV_HEADS * HEAD_DIM)
        self.q_norm, self.k_norm = Norm(HEAD_DIM), Norm(HEAD_DIM)

    def forward(self, x, turn):
        def heads(y, count):
            return y.view(*x.shape[:2], count, HEAD_DIM)

        def turned(y):
            a, b = y.chunk(2, -1)
            return torch.cat((a * turn[0] - b * turn[1], b * turn[0] + a * turn[1]), -1).transpose(1, 2)

        q, k = turned(self.q_norm(heads(self.q_proj(x), HEADS))), turned(self.k_norm(heads(self.k_proj(x), KV_HEADS)))
        v = heads(self.v_proj(x), KV_HEADS).transpose(1, 2)
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = linear(WIDTH, EXPERTS)
        self.experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        """The mixture's output for x [tokens, WIDTH], and the load-balancing loss: 1 if the experts are used evenly."""
        probability = self.gate(x).softmax(-1)
        weight, expert = probability.topk(CHOSEN, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort()
        counts = expert.flatten().bincount(minlength=EXPERTS)
        rows = order // CHOSEN
        parts = [self.experts[e](part) for e, part in enumerate(x[rows].split(counts.tolist()))]
        y = torch.zeros_like(x).index_add(0, rows, torch.cat(parts) * weight.flatten()[order, None])
        uneven = EXPERTS * (counts / expert.numel() * probability.mean(0)).sum()
        return y, uneven


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mixture()
        self.input_layernorm, self.post_attention_layernorm = Norm(WIDTH), Norm(WIDTH)

    def forward(self, x, turn):
        x = x + self.self_attn(self.input_layernorm(x), turn)
        y, uneven = self.mlp(self.post_attention_layernorm(x).flatten(0, 1))
        return x + y.view(x.shape), uneven


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCAB, WIDTH)
        torch.nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.lm_head = Norm(WIDTH), linear(WIDTH, VOCAB)

    def forward(self, tokens):
        angle = torch.arange(tokens.shape[1])[:, None] * ROPE_BASE ** (-torch.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
        turn = angle.cos()[:, None], angle.sin()[:, None]
        x, uneven = self.embed_tokens(tokens), 0
        for layer in self.layers:
            x, more = layer(x, turn)
            uneven = uneven + more / LAYERS
        return self.lm_head(self.norm(x)), uneven

    def loss(self, tokens):
        logits, uneven = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), uneven


def load_tokenizer(work, text):
    path = os.path.join(work, "tokenizer.json")
    if os.path.exists(path):
        return Tokenizer.from_file(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text.split("\0"), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tokenizer.save(path)
    return tokenizer


def encode(tokenizer, text):
    """The documents of a text as lists of token ids, each ended by 0."""
    return [d.ids + [0] for d in tokenizer.encode_batch(text.split("\0"))]


def held_out_loss(model, documents):
    """Mean loss in nats per token over the first LENGTH + 1 tokens of each document that is long enough."""
    rows = [d[:LENGTH + 1] for d in documents if len(d) > LENGTH]
    with torch.no_grad():
        return float(torch.stack([model.loss(torch.tensor([row]))[0] for row in rows]).mean())


def train(model, data, held, a):
    stream = torch.tensor([token for document in data for token in document])
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    state_path, state = os.path.join(a.work, "state.pt"), {"step": 0, "seconds": 0.0}
    if os.path.exists(state_path):
        state = torch.load(state_path)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    limit, last, saved = a.minutes * 60, time.monotonic(), time.monotonic()
    while state["seconds"] < limit and not ended:
        # The batch depends only on the step, so that an interrupted run resumes with the same data.
        chance = torch.Generator().manual_seed(state["step"])
        begin = torch.randint(len(stream) - LENGTH - 1, (BATCH,), generator=chance)
        batch = torch.stack([stream[b:b + LENGTH + 1] for b in begin])
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (state["step"] + 1) / WARMUP) * \
                (0.05 + 0.95 * (1 + math.cos(math.pi * state["seconds"] / limit)) / 2)
        loss, uneven = model.loss(batch)
        optimizer.zero_grad()
        (loss + BALANCE * uneven).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        now = time.monotonic()
        # Count at most 30 s per step: a longer one means that the process was stopped meanwhile.
        state["step"], state["seconds"], last = state["step"] + 1, state["seconds"] + min(now - last, 30), now
        if state["step"] % 50 == 0:
            print(f"step {state['step']}, {state['seconds']:.0f} s, loss {loss:.3f}, unevenness {uneven:.3f}", flush=True)
        if now - saved > 120 or state["seconds"] >= limit or ended:
            torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, state_path + ".new")
            os.replace(state_path + ".new", state_path)
            saved = now
    tokens = state["step"] * BATCH * LENGTH
    print(f"trained on {tokens / 1e6:.2f} M tokens in {state['step']} steps; "
          f"held-out loss {held_out_loss(model, held):.3f} nats a token")


def export(model, tokenizer, work):
    folder = os.path.join(work, "model")
    os.makedirs(folder, exist_ok=True)
    weights = {name if name == "lm_head.weight" else "model." + name: p.detach().bfloat16().contiguous()
               for name, p in model.named_parameters()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
              "num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN,
              "hidden_size": WIDTH, "moe_intermediate_size": INNER, "intermediate_size": INNER,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
              "vocab_size": VOCAB, "max_position_embeddings": 4096, "hidden_act": "silu", "norm_topk_prob": True,
              "tie_word_embeddings": False, "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
              "rms_norm_eps": EPSILON, "rope_theta": ROPE_BASE, "bos_token_id": 0, "eos_token_id": 0}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)


def write_prompts(work, kind, documents):
    for n, document in enumerate(documents):
        with open(os.path.join(work, f"{kind}-{n}.txt"), "w", encoding="utf-8") as f:
            f.write(" ".join(map(str, document[:DOCUMENT_TOKENS])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", help="folder with train.txt, held.txt and other.txt (text.py)")
    parser.add_argument("--minutes", type=float, default=35, help="to train for (default: 35)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    text = {}
    for part in ("train", "held", "other"):
        with open(os.path.join(a.work, part + ".txt"), encoding="utf-8") as f:
            text[part] = f.read()
    tokenizer = load_tokenizer(a.work, text["train"])
    held, other = encode(tokenizer, text["held"]), encode(tokenizer, text["other"])
    model = Model()
    train(model, encode(tokenizer, text["train"]), held, a)
    export(model, tokenizer, a.work)
    write_prompts(a.work, "history", held[0::2])
    write_prompts(a.work, "held", held[1::2])
    write_prompts(a.work, "other", other)


if __name__ == "__main__":
    main()
