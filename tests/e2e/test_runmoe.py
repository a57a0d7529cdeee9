# SPDX-License-Identifier: Apache-2.0
"""The example runtime: the same logits as llama.cpp on the same weights, for every budget, number of threads and batch
size; unsupported models are refused."""
import math

import e2e
from e2e import *

CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients/runmoe.py")
RUNMOE = program("runmoe")
SHAPE = ("-F", "qwen3-moe", "-d", "256", "-i", "160", "-e", "16", "--experts-per-token", "3", "-l", "4", "--vocab", "700")


def runmoe(store, *options):
    return run(RUNMOE, store, *options)


def said(result):
    return dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)


def compare(name, shape, *options):
    """Packs a model and compares its logits with llama.cpp's: (store, the reason if the comparison was skipped)."""
    packed, twin = make_store(make_model(name, *shape)), make_model(name + "-twin", *shape, "--format=gguf")
    compared = subprocess.run([os.environ.get("PYTHON", "/usr/bin/python3"), CLIENT, RUNMOE, packed,
                               os.path.join(twin, "model.gguf"), *options], capture_output=True, text=True)
    if compared.returncode != 77:
        check(compared.stdout.strip(), compared.returncode == 0, compared.stderr[-2000:])
    return packed, compared.returncode == 77 and compared.stdout.strip()


# one layer: vectors that are multiplied by BF16 weights are rounded where llama.cpp rounds them, and only there
compare("one", [("1" if before == "-l" else word) for before, word in zip(("", *SHAPE), SHAPE)], "--rounded-within", "1e-5")
store, missing = compare("model", SHAPE)

prompt = "5,9,130,77,2,2,641,300,12,12,12,699,0"
results, logits = set(), set()
for options in (("-t", 1), ("-t", 2, "--batch", 1), ("-t", 3, "--batch", 5), ("-t", 8, "--budget", "36M"),
                ("--form", "plain"), ("--form", "coded"), ("--form", "plain", "--budget", "36M")):
    path = scratch("logits")
    ran = runmoe(store, "-p", prompt, "-n", 6, "--logits", path, *options)
    results.add(said(ran).get("tokens", ran.stderr))
    with open(path, "rb") as file:
        logits.add(file.read())
check("threads, batches, budget and the form of experts do not change a bit", len(results) == len(logits) == 1, results)
rounded = set()
for options in (("-t", 1), ("-t", 3, "--batch", 1), ("--form", "plain"), ("--form", "coded", "--budget", "36M")):
    runmoe(store, "-p", prompt, "-n", 6, "--activations", "bf16", "--logits", path, *options)
    with open(path, "rb") as file:
        rounded.add(file.read())
check("nor with activations in BF16, which are others", len(rounded) == 1 and not rounded & logits)
check("logits of every position: 13 of the prompt, 5 of 6 tokens that follow",
      all(len(one) == (13 + 5) * 700 * 4 for one in logits), [len(one) for one in logits])
check("six tokens are told", re.fullmatch(r"\d+( \d+){5}", next(iter(results))), results)

drawn = [said(runmoe(store, "-p", prompt, "-n", 12, "--temp", 1.5, "--seed", seed))["tokens"] for seed in (1, 1, 2)]
check("a seed gives the same tokens again, another seed others", drawn[0] == drawn[1] != drawn[2], drawn)
with open(scratch("prompt"), "w") as file:
    file.write(prompt.replace(",", "\n"))
check("a prompt from a file is the same", said(runmoe(store, "-p", "@" + scratch("prompt"), "-n", 6))["tokens"] in results)
for form in ("plain", "coded", "any"):
    counted = said(runmoe(store, "-p", prompt, "-n", 6, "--batch", 1, "--form", form))
    check(f"{form}: three experts a layer and token, and one to compare",
          sum(int(counted[f"experts_{s}"]) for s in ("f", "c", "part", "m")) == (13 + 5) * 4 * 3 + 1, counted)
    check(f"{form}: only leased experts become full", (int(counted["experts_f"]) > 0) == (form == "plain"), counted)

print("-- on a mount")


def on_mount(mount, *options):
    path = scratch("logits")
    ran = runmoe(mount.path, "-p", prompt, "-n", 6, "--logits", path, *options)
    with open(path, "rb") as file:
        return ran, file.read()


if os.path.exists("/dev/fuse"):
    mount = Mount(store, "budget=60M")
    for form in ("plain", "coded", "any"):
        ran, bits = on_mount(mount, "--form", form, "-t", 2)
        counted = said(ran)
        check(f"{form}: the same bits as of a store", ran.returncode == 0 and {bits} == logits and counted["tokens"] in results, ran.stderr)
    ran, bits = on_mount(mount, "--form", "coded", "--activations", "bf16", "--batch", 1)
    check("with activations in BF16, too", {bits} == rounded, ran.stderr)
    two = [subprocess.Popen([RUNMOE, mount.path, "-p", prompt, "-n", "40", "--form", "coded", "-t", "2"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [p.communicate(timeout=PATIENCE) for p in two]
    check("two at once: the same tokens", all(p.returncode == 0 for p in two) and
          len({out.splitlines()[0] for out, _ in outs}) == 1, outs)
    check("nothing is held afterwards", wait_until(lambda: mount.count("coded_experts") == 0), mount.stat())
    check("a budget is for a store", runmoe(mount.path, "-b", "1G").returncode == 1)
    mount.unmount()
    mount = Mount(store, "budget=60M,nopassthrough")
    for form in ("any", "coded"):
        ran, bits = on_mount(mount, "--form", form)
        check(f"{form}: a mount without passthrough: the same", {bits} == logits, ran.stderr)
    mount.unmount()

print("-- on a device that is none")
cuda = {**os.environ, "EXPERTFS_CUDA": os.path.join(BUILD, "tests/engine/libcuda-fake.so")}


def on_device(path, *options):
    where = scratch("logits")
    ran = run(RUNMOE, path, "-p", prompt, "-n", 6, "--logits", where, *options, env=cuda)
    with open(where, "rb") as file:
        return ran, struct.unpack(f"<{18 * 700}f", file.read()) if ran.returncode == 0 else ()


def positions(numbers):
    return [numbers[at:at + 700] for at in range(0, len(numbers), 700)]


def nearly(one, other):
    """The same choice at each position, and numbers that differ only by the order of sums."""
    return len(one) == len(other) and all(
        max(range(700), key=a.__getitem__) == max(range(700), key=b.__getitem__) and
        max(abs(x - y) for x, y in zip(a, b)) < 1e-4 * max(map(abs, a)) for a, b in zip(positions(one), positions(other)))


ran, numbers = on_device(store, "--gpu", "36M")
if "built without kernels" in ran.stderr:
    note("the library was built without kernels for graphics processors: nothing was run there")
else:
    expected = struct.unpack(f"<{18 * 700}f", next(iter(logits)))
    counted = said(ran)
    check("the same tokens", ran.returncode == 0 and counted["tokens"] in results, ran)
    check("logits as the processor's, but for the order of sums", nearly(expected, numbers))
    check("its pool has room for 16 of 64 experts", counted["gpu_budget_bytes"] == str(36 << 20) and
          int(counted["gpu_brought"]) > 64 and int(counted["gpu_hits"]) > 0, counted)
    ran, numbers = on_device(store, "--gpu", "64M", "--batch", 1)
    check("token by token, with room for all", nearly(expected, numbers) and int(said(ran)["gpu_brought"]) <= 64, ran)
    refusal = run(RUNMOE, store, "--gpu", "36M", "--activations", "bf16", "-n", 1, env=cuda)
    check("no BF16 activations there", refusal.returncode == 1 and "F32 alone" in refusal.stderr, refusal)
    check("too small a budget", "at least" in run(RUNMOE, store, "--gpu", "32M", env=cuda).stderr)
    for options in (("--gpu", "36M"), ("--gpu", "64M", "--batch", 1), ("--gpu", "33M", "-t", 1)):
        ran, numbers = on_device(store, *options, "--share")
        counted = said(ran)
        check(f"shared with the processor: {' '.join(map(str, options))}", nearly(expected, numbers) and
              counted["tokens"] in results and int(counted["gpu_experts"]) > 0 < int(counted["cpu_experts"]), ran)
    ran, numbers = on_device(store, "--gpu", "64M", "--batch", 1, "--share")
    counted = said(ran)
    check("token by token each of them runs on one side", nearly(expected, numbers) and
          sum(int(counted[f"{side}_experts"]) for side in ("gpu", "cpu")) == 18 * 4 * 3, ran)
    long = [run(RUNMOE, store, "-p", prompt, "-n", 100, *options, env=cuda) for options in ((), ("--gpu", "36M", "--share"))]
    check("the same 100 of 100 tokens", len({said(ran)["tokens"] for ran in long}) == 1 and
          len(said(long[0])["tokens"].split()) == 100, long)
    check("sharing is with a device", run(RUNMOE, store, "--share", env=cuda).returncode == 2)
    if os.path.exists("/dev/fuse"):
        mount = Mount(store, "budget=60M")
        ran, numbers = on_device(mount.path, "--gpu", "36M")
        check("of a mount", nearly(expected, numbers), ran)
        ran, numbers = on_device(mount.path, "--gpu", "36M", "--share")
        check("of a mount, shared", nearly(expected, numbers), ran)
        mount.unmount()
check("without a device", "no graphics processor" in run(RUNMOE, store, "--gpu", "36M", env={**os.environ, "EXPERTFS_CUDA": "off"}).stderr
      or "built without kernels" in ran.stderr)

print("-- two files with tensors of the same names")


def tensors_of(path):
    """{name: (header entry, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        whole = file.read()
    begin = 8 + struct.unpack("<Q", whole[:8])[0]
    return {name: (entry, whole[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in json.loads(whole[8:begin]).items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def said_tokens(folder):
    ran = runmoe(make_store(folder), "-p", "5,9,130,77,2", "-n", 6)
    return said(ran).get("tokens", ran.stderr)


def folder_of(name, files, index, index_name="model.safetensors.index.json"):
    """A checkpoint of these files {name: tensors}, and an index {tensor: file}."""
    folder = scratch(name)
    os.mkdir(folder)
    shutil.copy(f"{two_models[0]}/config.json", folder)
    for file, tensors in files.items():
        write_tensors(f"{folder}/{file}", tensors)
    with open(f"{folder}/{index_name}", "w") as file:
        json.dump({"metadata": {}, "weight_map": index}, file)
    return folder


two_models = [make_model(f"seed{seed}", *SHAPE, "--seed", str(seed)) for seed in (1, 2)]
one, other = ({name: tensor for path in files_below(folder) if path.endswith(".safetensors")
               for name, tensor in tensors_of(f"{folder}/{path}").items()} for folder in two_models)
wanted = said_tokens(two_models[0])
layer_0 = [name for name in one if name.startswith("model.layers.0.")]
for order in (("a", "b"), ("b", "a")):
    base, more = (f"{letter}.safetensors" for letter in order)
    named = folder_of(f"named-{base}", {base: one, more: {name: other[name] for name in layer_0} | {
        "model.norm.weight": one["model.norm.weight"]}}, {**dict.fromkeys(one, base), "model.norm.weight": more})
    check(f"{base} by the index, not {more}, in which the names are, too", said_tokens(named) == wanted, said_tokens(named))
variant = folder_of("variant", {"model.safetensors": one, "model.fp16.safetensors": other},
                    dict.fromkeys(other, "model.fp16.safetensors"), "model.fp16.safetensors.index.json")
ran = runmoe(make_store(variant), "-n", 6)
check("a store with the experts of another file than the one with all else is refused", ran.returncode == 1 and
      "model.safetensors: the store has other experts" in ran.stderr, ran)
if os.path.exists("/dev/fuse"):
    mount = Mount(variant + ".efs", "budget=60M")
    check("on a mount, too", "model.safetensors: the store has other experts" in runmoe(mount.path, "-n", 6).stderr)
    mount.unmount()

print("-- experts only in files that are not the model's")
for kept in ((), ("0",)):  # layers whose experts are in model.safetensors
    own = {name: tensor for name, tensor in one.items() if ".mlp.experts." not in name or name.split(".")[2] in kept}
    for more in ("other.safetensors", "sub/model.safetensors"):
        folder = scratch(f"part-{len(kept)}-{more.partition('/')[0]}")
        os.makedirs(f"{folder}/{os.path.dirname(more)}")
        shutil.copy(f"{two_models[0]}/config.json", folder)
        write_tensors(f"{folder}/model.safetensors", own)
        write_tensors(f"{folder}/{more}", other)
        ran = runmoe(make_store(folder), "-n", 6)
        check(f"{more} with the experts of another model, {len(kept)} layers of this one: refused", ran.returncode == 1 and
              "experts" in ran.stderr, ran)

# several prompts, each a separate sequence; their routing as a trace
ran = runmoe(store, "-p", prompt, "-p", "7,8", "-p", prompt, "-n", 6)
lines = [line for line in ran.stdout.splitlines() if line.startswith("tokens: ")]
check("a prompt does not know those before it", lines[0] == lines[2] != lines[1] and lines[0][8:] in results, lines)
check("what was run is told of all prompts", (said(ran)["prompt_tokens"], said(ran)["generated_tokens"]) == ("28", "18"), ran)
path = scratch("run.route")
ran = runmoe(store, "-p", prompt, "-p", "7,8", "-n", 6, "--batch", 5, "--trace", path)
check("a trace does not change what is run", ran.stdout.splitlines()[:2] == lines[:2], ran)
L, E, K, H, T = 4, 16, 3, 256, 13 + 5 + 2 + 5
record = 8 + 2 * L * (K + E + H) + 2 * H
size = 48 + 6 + 2 * L * E * H + T * record
with open(path, "rb") as file:
    data = file.read()
check("as many bytes as the format says", len(data) == size)
check("its head", data[:54] == b"MOETRACE" + struct.pack("<6IQ2I", 2, L, E, K, 30, 6, T, H, 0) + b"runmoe", data[:54])
gates = struct.unpack_from(f"<{L * E * H}e", data, 54)
wrong, told = 0, []
for t in range(T):
    at = 54 + 2 * L * E * H + t * record
    told.append(struct.unpack_from("<2I", data, at))
    ids = struct.unpack_from(f"<{L * K}H", data, at + 8)
    scores = struct.unpack_from(f"<{L * E}e", data, at + 8 + 2 * L * K)
    states = struct.unpack_from(f"<{L * H}e", data, at + 8 + 2 * L * (K + E))
    for l in range(L):
        state, given = states[l * H:(l + 1) * H], scores[l * E:(l + 1) * E]
        logits = [sum(map(float.__mul__, gates[(l * E + e) * H:(l * E + e + 1) * H], state)) for e in range(E)]
        sums = [math.exp(z - max(logits)) for z in logits]
        best = sorted(range(E), key=lambda e: -given[e])[:K]
        wrong += max(abs(s / sum(sums) - g) for s, g in zip(sums, given)) > 2e-3
        wrong += [given[e] for e in ids[l * K:(l + 1) * K]] != [given[e] for e in best]
check("sequences, prompts and decoded tokens are told apart", told == [(0, 1)] * 13 + [(0, 2)] * 5 + [(1, 1)] * 2 +
      [(1, 2)] * 5, told)
check("states and routers give the probabilities, and these the experts", wrong == 0, wrong)
result = run(program("moe-replay"), "predict", "--predictors", "mixtral-offloading,deepspeed", path)
check("moe-replay predicts by it", result.returncode == 0 and "mixtral-offloading" in result.stdout, result)
other = make_store(make_model("other", "--preset=tiny-mixtral"))
wide = make_store(make_model("wide", *SHAPE, "--dtype=f32"))
for what, status, text, ran in (
        ("another family", 1, "only qwen3_moe", runmoe(other)),
        ("no store", 1, "cannot open", runmoe(scratch("nothing"))),
        ("experts that are not BF16", 1, "not a matrix of BF16", runmoe(wide)),
        ("a form that there is not", 2, "--form", runmoe(store, "--form", "full")),
        ("a token beyond the vocabulary", 1, "vocabulary has 700", runmoe(store, "-p", "3,700")),
        ("a prompt that is not numbers", 2, "--prompt", runmoe(store, "-p", "3,x")),
        ("a budget below the minimum", 1, "minimum", runmoe(store, "-b", "1M")),
        ("a file that cannot be written", 1, "No such file", runmoe(store, "--logits", scratch("no/such"))),
        ("a trace that cannot be written", 1, "No such file", runmoe(store, "--trace", scratch("no/such"))),
        ("a full disk", 1, "No space left", runmoe(store, "--trace", "/dev/full")),
        ("no argument", 2, "STORE", run(RUNMOE))):
    check(f"{what}: refused with {status}", ran.returncode == status and text in ran.stderr, (ran.returncode, ran.stderr))
if missing and not e2e._failures:
    skip(missing)
done()
