#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files with equal bytes are stored once and served under all of their names; the history of a Git clone is not
packed."""
import filecmp
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

GGUF_NAME = "sha256-" + "2bada8a7" * 8


whole = {}  # experts and tensors of each model


def packed(what, source, *options, copies=0, notes=(), kind="safetensors"):
    """Packs the source; checks the files from unpack, from the man page's reader and from a mount. Returns the store's
    bytes."""
    store = scratch("out.efs")
    result = run(program("mkexpertfs"), "-f", "--json", "--verify", *options, source, store)
    if not check(f"{what}: packed", result.returncode == 0, result.stderr):
        return 0
    report = json.loads(result.stdout)
    check(f"{what}: all experts, each tensor once", whole.setdefault(kind, (report["experts"], report["tensors"])) ==
          (report["experts"], report["tensors"]), report)
    rows = [row for row in report["rows"] if row["class"] == "copy"]
    check(f"{what}: {copies} copies in the table", sum(row["tensors"] for row in rows) == copies and
          all(row["coded_bytes"] == 0 and row["raw_bytes"] > 0 for row in rows), result.stdout)
    for words in notes:
        check(f"{what}: the note of {words[0]}", any(all(word in line for word in words)
                                                     for line in result.stderr.splitlines()), result.stderr)
    check(f"{what}: verified", run(program("expertctl"), "verify", "--decode", store).returncode == 0)
    for how, command in {"unpack": (program("expertctl"), "unpack", store),
                         "read_store.py": (sys.executable, os.path.join(HERE, "../man/read_store.py"), store)}.items():
        out = scratch("out")
        shutil.rmtree(out, ignore_errors=True)
        result = run(*command, out)
        check(f"{what}: {how}", result.returncode == 0, result.stderr)
        same(f"{what}: {how}", source, out)
    if FUSE:
        mount = Mount(store, "budget=64M")
        same(f"{what}: mount", source, mount.path, but=("experts", ".expertfs"))
        mount.stop()
    return os.path.getsize(store)


def same(what, source, out, but=()):
    """Checks that out has all files of source except those of .git and `but`, and no further ones."""
    names = [{os.path.relpath(os.path.join(folder, file), top) for folder, _, files in os.walk(top) for file in files
              if os.path.relpath(os.path.join(folder, file), top).split("/")[0] not in (".git", *but)}
             for top in (source, out)]
    check(f"{what}: the names", names[0] == names[1], names)
    wrong = [name for name in names[0] & names[1]
             if not filecmp.cmp(os.path.join(source, name), os.path.join(out, name), shallow=False)]
    check(f"{what}: the bytes", not wrong, wrong)


def with_copies(name, copies, model="model", link=shutil.copyfile):
    """A model with copies of its files: {path: file of the model}."""
    source = scratch(name)
    shutil.copytree(model, source)
    for path, original in copies.items():
        os.makedirs(os.path.dirname(os.path.join(source, path)), exist_ok=True)
        link(os.path.join(model, original), os.path.join(source, path))
    return source


FUSE = os.path.exists("/dev/fuse")
model = make_model("model", "--preset=tiny-mixtral")
weights = sorted(name for name in os.listdir(model) if name.endswith(".safetensors"))
alone = packed("a model", model)

# A clone with Git LFS
objects = {f".git/lfs/objects/4d/7a/{i:064x}": name for i, name in enumerate(weights)}
clone = with_copies("clone", objects, model)
check("a clone with Git LFS: no larger", 0 < packed("a clone", clone, notes=[(".git", "is not packed")]) <= alone)

# The same outside of .git: a bare repository's objects, and a folder that was set aside (as in
# lllyasviel/ControlNet-v1-1-nightly#70)
bare = with_copies("bare", {path[5:]: name for path, name in objects.items()}, model)
size = packed("objects of a bare repository", bare, copies=len(weights),
              notes=[("lfs/objects", "has the bytes of", weights[0], "stored once")])
check("objects of a bare repository: no larger", 0 < size < alone + 16384, (size, alone))
bak = with_copies("bak", {f"a.bak/{name}": name for name in files_below(model)}, model)
size = packed("a folder set aside", bak, copies=sum(os.path.getsize(os.path.join(model, name)) >= 4096
                                                    for name in files_below(model)))
check("a folder set aside: no larger", 0 < size < alone + 32768, (size, alone))

# A copy that the index does not name, and that sorts before the file that it names
packed("a copy beside the index", with_copies("other", {"also.safetensors": weights[0]}, model), copies=1,
       notes=[("also.safetensors has the bytes of " + weights[0],)])

# A GGUF file and the blob that Ollama made of it (ollama/ollama#1450)
gguf = make_model("gguf", "--preset=tiny-mixtral", "--format=gguf")
name = next(name for name in os.listdir(gguf) if name.endswith(".gguf"))
alone_gguf = packed("a GGUF file", gguf, kind="gguf")
size = packed("a GGUF file and its blob", with_copies("ollama", {f"blobs/{GGUF_NAME}": name}, gguf), copies=1,
              kind="gguf")
check("a GGUF file and its blob: no larger", 0 < size < alone_gguf + 16384, (size, alone_gguf))

# Equal in size and in every sample, but different
near = with_copies("near", {"near.bin": weights[0], "also.bin": weights[0], "again.bin": weights[0]}, model)
for name, at in ("near.bin", 5000), ("again.bin", 5000):
    flip(os.path.join(near, name), at)
packed("files that are nearly the same", near, copies=2)

# With --reclaim, the same store
for kind, source in ("bare", bare), ("clone", clone):
    run(program("mkexpertfs"), "-q", "-f", source, scratch("out.efs"))
    result = run(program("mkexpertfs"), "-q", "--reclaim", "--yes", "--step=1M", source, scratch("reclaimed.efs"))
    check(f"{kind}: --reclaim", result.returncode == 0, result.stderr)
    check(f"{kind}: the same store", filecmp.cmp(scratch("out.efs"), scratch("reclaimed.efs"), shallow=False))
    os.unlink(scratch("reclaimed.efs"))
check("--reclaim leaves the history", files_below(clone) == sorted(objects), files_below(clone))
done()
