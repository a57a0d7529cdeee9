# SPDX-License-Identifier: Apache-2.0
"""Names of models: files of the Hub's cache, which are links to blobs with checksums for names; names as llama.cpp and
ollama write them, revisions and addresses; {gguf} next to files that go with a model."""
import hashlib

from e2e import *

need_fuse()
expertctl = program("expertctl")
CACHE = scratch("hub")
os.environ.update(HF_HUB_CACHE=CACHE, HOME=scratch("home"))
Q8_0, BF16, F16 = 8, 30, 1
generator = random.Random(51)


def gguf_file(path, kind=Q8_0, experts=8, **metadata):
    """A GGUF file with one layer of experts; metadata: strings, with _ for the dot in a key."""
    block, block_bytes = {Q8_0: (32, 34), BF16: (1, 2), F16: (1, 2)}[kind]
    metadata = {"general_architecture": "qwen3moe", **metadata}
    text = lambda value: struct.pack("<Q", len(value)) + value.encode()
    shape, names = (256, 128, experts), [f"blk.0.ffn_{part}_exps.weight" for part in ("gate", "up", "down")] if experts else []
    count = 256 * 128 * experts // block * block_bytes
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(names), len(metadata))
    for key, value in metadata.items():
        header += text(key.replace("_", ".", 1)) + struct.pack("<I", 8) + text(value)
    for number, name in enumerate(names):
        header += text(name) + struct.pack("<I3QIQ", 3, *shape, kind, number * count)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
        for _ in names:
            if kind == Q8_0:
                file.write(generator.randbytes(count))
            else:
                file.write(b"".join(struct.pack("<H", 0x3c00 + generator.getrandbits(9)) for _ in range(count // 2)))


def repository(name, commit, files, *references):
    """A model in the cache of the Hub; files: {name: path}."""
    folder = f"{CACHE}/models--{name.replace('/', '--')}"
    for path, source in files.items():
        link = f"{folder}/snapshots/{commit}/{path}"
        with open(source, "rb") as file:
            blob = hashlib.sha256(file.read()).hexdigest()
        for above in (f"{folder}/blobs", os.path.dirname(link)):
            os.makedirs(above, exist_ok=True)
        shutil.copy(source, f"{folder}/blobs/{blob}")
        os.symlink(os.path.relpath(f"{folder}/blobs/{blob}", os.path.dirname(link)), link)
    for reference in references:
        os.makedirs(os.path.dirname(f"{folder}/refs/{reference}"), exist_ok=True)
        with open(f"{folder}/refs/{reference}", "w") as file:
            file.write(commit)
    return f"{folder}/snapshots/{commit}"


def up(*arguments):
    return run(expertctl, "up", *arguments)


def runs(what, given, ends, source, *words):
    """Runs a program on a model; {gguf} has the name and the bytes."""
    result = up("-o", "budget=64M", given, "--", "sh", "-c", 'cmp "$1" "$2" && echo "${2#$EXPERTFS_MOUNT/}"', "sh", source, *(words or ["{gguf}"]))
    check(f"{what}: {ends}", result.returncode == 0 and result.stdout == f"{ends}\n", result)


made = {}
for kind, name in ((BF16, "BF16"), (Q8_0, "Q8_0")):
    made[name] = scratch(f"made/{name}.gguf")
    gguf_file(made[name], kind)
for name, facts in (("mmproj", {"general_type": "mmproj", "general_architecture": "clip"}), ("old clip", {"general_architecture": "clip"}),
                    ("imatrix", {"general_type": "imatrix"}), ("lora", {"general_type": "adapter"}),
                    ("control", {"general_architecture": "controlvector"})):
    made[name] = scratch(f"made/{name}.gguf")
    gguf_file(made[name], Q8_0, 1, **facts)
made["vocab"] = scratch("made/vocab.gguf")
gguf_file(made["vocab"], Q8_0, 0)

print("-- a file of the Hub's cache has its own name, not that of its blob")
snapshot = repository("org/Tiny-GGUF", "0123abc", {
    "Tiny-BF16.gguf": made["BF16"], "Tiny-Q8_0.gguf": made["Q8_0"], "mmproj-Tiny-Q8_0.gguf": made["mmproj"],
    "imatrix.gguf": made["imatrix"]}, "main")
for name in ("BF16", "Q8_0"):
    runs("a name on the Hub", f"org/Tiny-GGUF/Tiny-{name}.gguf", f"Tiny-{name}.gguf", made[name])
    runs("a path", f"{snapshot}/Tiny-{name}.gguf", f"Tiny-{name}.gguf", made[name])
    mounted = Mount(f"{snapshot}/Tiny-{name}.gguf", "budget=64M", name="daemon")
    check("expertfs", f"Tiny-{name}.gguf" in os.listdir(mounted.path) and mounted.config()["store"].endswith(f"/Tiny-{name}.gguf"),
          os.listdir(mounted.path))
    mounted.unmount()
stores = [name for name in os.listdir(scratch("data/expertfs")) if name.endswith(".efs")]
check("one store, with the name of the file", len(stores) == 1 and stores[0].startswith("Tiny-BF16@"), stores)
os.symlink(f"{snapshot}/Tiny-Q8_0.gguf", scratch("my model.gguf"))
runs("a link of one's own", scratch("my model.gguf"), "my model.gguf", made["Q8_0"])
for number in (1, 2):
    gguf_file(scratch(f"made/part{number}"), Q8_0)
parts = {f"Split-0000{number}-of-00002.gguf": scratch(f"made/part{number}") for number in (1, 2)}
split = repository("org/Split-GGUF", "5511", parts, "main")
mounted = Mount(f"{split}/Split-00001-of-00002.gguf", "budget=64M", name="split")
check("a part of a split model: the parts next to the link", set(parts) <= set(os.listdir(mounted.path)), os.listdir(mounted.path))
mounted.unmount()
runs("up with a part", f"{split}/Split-00001-of-00002.gguf", "Split-00001-of-00002.gguf", scratch("made/part1"))

print("-- {gguf} next to files that are no model")
folder = scratch("companions")
os.makedirs(folder)
shutil.copy(made["Q8_0"], f"{folder}/a-model.gguf")
for name in ("mmproj", "old clip", "imatrix", "lora", "control", "vocab"):
    shutil.copy(made[name], f"{folder}/{'zz' if name == 'lora' else ''}{name} f16.gguf")
runs("all of them", folder, "a-model.gguf", made["Q8_0"])
shutil.copy(made["BF16"], f"{folder}/mmproj-is-my-model.gguf")
result = up("-o", "budget=64M", make_store(folder), "--", "true", "{gguf}")
check("names count for nothing: two models", result.returncode == 125 and
      "several GGUF files: a-model.gguf, mmproj-is-my-model.gguf\n" in result.stderr, result)
for name in os.listdir(folder):
    if "mmproj f16" not in name:
        os.remove(f"{folder}/{name}")
runs("an encoder alone", folder, "mmproj f16.gguf", made["mmproj"])
result = up(os.path.dirname(made["BF16"]))
check("a folder of models that would be packed is refused, without the companions", result.returncode == 1 and re.search(
      "a folder of several models: BF16.gguf, Q8_0.gguf, part1, part2\nhint: ", result.stderr), result)

print("-- names with a quantisation, revisions, addresses")
with open(scratch("made/config"), "w") as file:
    file.write('{"architectures": ["Qwen3MoeForCausalLM"]}')
repository("org/Many-GGUF", "77aa", {
    "Many-Q4_K_M.gguf": made["BF16"], "Many-Q4_K.gguf": made["Q8_0"], "UD-IQ1_S/Many-UD-IQ1_S-00001-of-00002.gguf": scratch("made/part1"),
    "UD-IQ1_S/Many-UD-IQ1_S-00002-of-00002.gguf": scratch("made/part2"), "Many-Q6_K-00001-of-00002.gguf": scratch("made/part2"),
    "Many-Q6_K-00002-of-00002.gguf": scratch("made/part1"), "mmproj-Q4_K.gguf": made["mmproj"], "mmproj-F16.gguf": made["mmproj"], "config.json": scratch("made/config")}, "main")
for given in ("org/Many-GGUF:Q4_K", "org/Many-GGUF:q4_k", "hf.co/org/Many-GGUF:Q4_K", "huggingface.co/org/Many-GGUF:Many-Q4_K.gguf",
              "org/Many-GGUF@main:Q4_K", "https://huggingface.co/org/Many-GGUF/blob/main/Many-Q4_K.gguf",
              "https://huggingface.co/org/Many-GGUF/resolve/main/Many-Q4_K.gguf?download=true",
              "https://hf.co/org/Many-GGUF/blob/77aa/Many-Q4_K.gguf#L1", "hf://org/Many-GGUF/Many-Q4_K.gguf"):
    runs("a file", given, "Many-Q4_K.gguf", made["Q8_0"])
runs("another one", "org/Many-GGUF:Q4_K_M", "Many-Q4_K_M.gguf", made["BF16"])
runs("a split one in a folder", "org/Many-GGUF:UD-IQ1_S", "Many-UD-IQ1_S-00001-of-00002.gguf", scratch("made/part1"))
runs("a split one next to other files", "org/Many-GGUF:Q6_K", "Many-Q6_K-00001-of-00002.gguf", scratch("made/part2"))
result = up("org/Many-GGUF")
check("no quantisation: which?", result.returncode == 1 and re.search(
      "several models: Many-Q4_K.gguf, Many-Q4_K_M.gguf, Many-Q6_K, UD-IQ1_S/Many-UD-IQ1_S\nhint: ", result.stderr), result)
for given, says in (("org/Many-GGUF:Q5_K", r"`hf download org/Many-GGUF --include '\*Q5_K\*'`"), ("org/Many-GGUF:Q4", "neither a path"), ("org/Many-GGUF:F16", "neither a path"),
                    ("org/Many-GGUF@refs/pr/9", "--revision refs/pr/9`"), ("org/None-GGUF:Q4_K", "neither a path"),
                    ("https://huggingface.co/org/None/tree/main/sub", "`hf download org/None sub`"),
                    ("org/Many-GGUF@../../x", "No such file"), ("org/Many-GGUF:../x", "No such file")):
    result = up(given)
    check(f"not there: {given}", result.returncode == 1 and re.search(says, result.stderr), result)
for given, has in (("org/Many-GGUF:Q5_K", "Many-Q4_K.gguf, Many-Q4_K_M.gguf, Many-Q6_K-00001-of-00002.gguf, UD-IQ1_S/Many-UD-IQ1_S-00001-of-00002.gguf"),
                   ("org/Many-GGUF@99ff", "revision 77aa"), ("org/Many-GGUF@99ff:Q4_K", "revision 77aa"), ("org/Tiny-GGUF/none.gguf", "Tiny-BF16.gguf, Tiny-Q8_0.gguf")):
    result = up(given)
    check(f"what is there instead: {given}", result.returncode == 1 and
          f": neither a path, nor in the cache of the Hugging Face Hub, which has {has} of this model\nhint: `hf download " in result.stderr, result)
check("of another model nothing is there", "Hub\nhint: " in up("org/None-GGUF:Q4_K").stderr)
both = repository("org/Both-GGUF", "88bb", {"a-Q8_0.gguf": made["Q8_0"], "b-Q8_0.gguf": made["BF16"]}, "main")
result = up("org/Both-GGUF:Q8_0")
check("two files of a quantisation", result.returncode == 1 and "which file? there are a-Q8_0.gguf, b-Q8_0.gguf\nhint: " in result.stderr, result)
model = make_model("plain", *NARROW)
files = {name: f"{model}/{name}" for name in os.listdir(model) if os.path.isfile(f"{model}/{name}")}
first = repository("org/Plain", "aa11", files, "main")
with open(scratch("made/config.json"), "w") as file:
    file.write(open(files["config.json"]).read() + "\n")
second = repository("org/Plain", "bb22", {**files, "config.json": scratch("made/config.json")}, "refs/pr/1", "feature/x")
mounts = {}
for given, config in (("org/Plain@refs/pr/1", second), ("org/Plain@feature/x", second), ("org/Plain@bb2", second),
                      ("https://huggingface.co/org/Plain/tree/refs%2Fpr%2F1", second), (f"{CACHE}/models--org--Plain", first), (first, first),
                      ("org/Plain", first), ("org/Plain@main", first), ("https://huggingface.co/org/Plain/tree/main/", first)):
    result = up(given)
    mount = re.search(" on (.*)\n", result.stdout)
    check(f"{given}: mounted", result.returncode == 0 and mount, result)
    mount = mounts.setdefault(config, mount[1])
    check("once", f" on {mount}\n" in result.stdout, result)
    check("its files", open(f"{mount}/config.json").read() == open(f"{config}/config.json").read())
stores = [name for name in os.listdir(scratch("data/expertfs")) if name.startswith("org--Plain") and name.endswith(".efs")]
check("two revisions, two stores", len(stores) == 2, stores)
check("the second mount point has the checksum", mounts[second] == scratch("data/expertfs/org--Plain") and
      re.fullmatch(mounts[second] + "@[0-9a-f]{8}", mounts[first]), mounts)
check("down by an address", run(expertctl, "down", "https://huggingface.co/org/Plain").returncode == 0 and not is_mounted(mounts[second]))
run(expertctl, "down", mounts[first])

print("-- another name of the same bytes")
repository("org/Twin", "cc33", files, "main")
result = up("org/Plain")
check("mounted", result.returncode == 0, result)
mount = re.search(" on (.*)\n", result.stdout)[1]
result = up("org/Twin")
check("it has the other's store and mount", result.returncode == 0 and f" on {mount}\n" in result.stdout, result)
for verb in ("status", "doctor", "info"):
    result = run(expertctl, verb, "org/Twin")
    check(verb, result.returncode == 0, result)
result = run(expertctl, "down", "org/Twin")
check("down", result.returncode == 0 and not is_mounted(mount), result)
result = run(expertctl, "rm", "--yes", "org/Twin")
check("rm says that its store is the other's", result.returncode == 1 and
      re.search("org/Twin: its store is that of org--Plain@\\w+, too\nhint: `expertctl rm org--Plain@", result.stderr), result)
done()
