#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as users have them: files with a wrong extension, files that no reader supports, incomplete downloads. A
checkpoint that can be packed is restored byte for byte; a refusal names the reason."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 4976698672\n"
APPLE_DOUBLE = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(64)
EXPERTS = {f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight": 8192
           for layer in range(2) for expert in range(2) for name in ("up_proj", "down_proj")}


def safetensors(tensors, behind=b"", metadata=None, dtype="BF16"):
    """A safetensors file of tensors: {name: bytes}."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(256)) * (at // 256) + bytes(at % 256) + behind


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors, metadata=(), data=None, kind=0):
    """A GGUF file of tensors: {name: (shape, slowest last; offset; type, if not kind)}, with metadata of strings and
    numbers, and `data` bytes of data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata:
        head += text(key) + (struct.pack("<I", 8) + text(value) if isinstance(value, str) else
                             struct.pack("<IH", 2, value))
    end = 0
    for name, (shape, offset, *own) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, own[0] if own else kind, offset)
        size = 4
        for n in shape:
            size *= n
        end = max(end, offset + size)
    head += bytes(-len(head) % 32)
    return head + bytes(end if data is None else data)


GGUF_EXPERTS = {f"blk.{layer}.ffn_{name}_exps.weight": ((64, 8, 2), (3 * layer + i) * 4096)
                for layer in range(2) for i, name in enumerate(("gate", "up", "down"))}


def folder(name, files):
    for path, data in files.items():
        whole = scratch(f"{name}/{path}")
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
    return scratch(name)


def pack(source, *options):
    return run(program("mkexpertfs"), "-f", "--json", "--codec=raw", *options, source, scratch("out.efs"))


def packed(what, source, *options, experts, notes=()):
    """Checks that it is packed and restored, and that each note is one line with all its words, with no further
    notes."""
    result = pack(source, *options)
    if not check(f"{what}: packed", result.returncode == 0, result.stderr):
        return
    check(f"{what}: {experts} experts", json.loads(result.stdout)["experts"] == experts, result.stdout)
    lines = [line for line in result.stderr.splitlines()
             if "note: no tensor" not in line and not line.startswith("packing: ")]  # progress, if it takes seconds
    check(f"{what}: the notes", len(lines) == len(notes) and
          all(any(all(word in line for word in words) for line in lines) for words in notes), result.stderr)
    back = scratch("back")
    run("rm", "-rf", back)
    run(program("expertctl"), "unpack", "-q", scratch("out.efs"), back)
    if os.path.isdir(source):
        check(f"{what}: comes back as it was", run("diff", "-r", source, back).returncode == 0)


def refused(what, source, *words):
    result = pack(source)
    lines = result.stderr.splitlines()
    check(f"{what}: refused, and told why", result.returncode == 1 and all(word in lines[0] for word in words) and
          len(lines) == 2 and lines[1].startswith("hint: ") and "--any" in lines[1], result.stderr)
    asked = run(program("expertctl"), "info", source)
    check(f"{what}: expertctl info says the same", asked.returncode == 1 and asked.stderr.split(": ", 1)[1:] ==
          result.stderr.split(": ", 1)[1:], asked.stderr)
    result = pack(source, "--any")
    check(f"{what}: packed with --any", result.returncode == 0, result.stderr)


def files_that_are_not_understood():
    """An unsupported file does not prevent other files from being packed."""
    plain = "packed as plain bytes, without experts"
    good = safetensors(EXPERTS)
    other = {"model.norm.weight": 512}
    aligned = {"model.layers.9.mlp.experts.0.up_proj.weight": 8192}
    stump = safetensors(aligned)
    odd = {
        "._model.safetensors": (APPLE_DOUBLE, "is an AppleDouble file"),
        "._model-00002-of-00003.safetensors": (APPLE_DOUBLE, "is an AppleDouble file"),  # there are no other parts
        "x.gguf": (gguf({"blk.0.ffn_up_exps.weight": ((64, 4, 2), 16)}), "is not a multiple of the alignment"),
        "y.gguf": (gguf({"a": ((64,), 0), "b": ((64,), 32)}, kind=13), "not a whole number of ggml:Q5_K blocks"),
        "behind.safetensors": (safetensors(aligned, behind=b"x"), "the data has 8193 bytes"),
        "stump.safetensors": (stump[:8 + int.from_bytes(stump[:8], "little")], "past the data (0 bytes)"),
        "stump.gguf": (gguf({"a": ((64,), 0)}, data=0), "past the data (0 bytes)"),
        "key.safetensors": (safetensors({"a\0b": 512}), "NUL"),
    }
    for name, (data, why) in odd.items():
        source = folder(f"odd {name}", {"model.safetensors": good, name: data, "config.json": "{}"})
        packed(name, source, experts=4, notes=[(name, why, plain)])
        packed(f"{name}, alone", folder(f"alone {name}", {name: data, "a.txt": "text"}),
               *(["--any"] if name.startswith("._") else []), experts=0, notes=[(name, why, plain)])
    packed("all of them", folder("odd", {"model.safetensors": good} | {name: data for name, (data, _) in odd.items()}),
           experts=4, notes=[(name, why, plain) for name, (_, why) in odd.items()])
    # A safetensors file without a readable header, in a folder of files with headers, is a part of the model
    for name, data, why in (("long.safetensors", struct.pack("<Q", 100000001) + b"{", "100000000 are the most"),
                            ("torch.safetensors", b"PK\3\4" + bytes(60), "header"),
                            ("json.safetensors", struct.pack("<Q", 6) + b"{1: 2}" + bytes(64), "JSON at offset")):
        refused(name, folder(f"odd {name}", {"model.safetensors": good, name: data}), f"/{name}: ", why)
        packed(f"{name}, alone", folder(f"alone {name}", {name: data, "a.txt": "text"}), experts=0,
               notes=[(name, why, plain)])
        packed(f"{name}, in another folder", folder(f"apart {name}", {"model.safetensors": good, f"a/{name}": data}),
               experts=4, notes=[(name, why, plain)])
    many = {f"._model-{i:02}.safetensors": APPLE_DOUBLE for i in range(40)}
    packed("forty", folder("forty", {"model.safetensors": good} | many), experts=4,
           notes=[(f"._model-{i:02}.safetensors",) for i in range(16)] + [("24 more files",)])
    # Files that Python's safetensors package reads are read
    packed("U+0000 in the metadata", folder("nul", {"model.safetensors": safetensors(EXPERTS, metadata={"a": "b\0c"})}),
           experts=4)
    for kind in (31, 97, 337):  # withdrawn types; types of ik_llama.cpp
        packed(f"tensors of the unknown type {kind} in GGUF", folder(f"fork {kind}", {"a.gguf": gguf(
            GGUF_EXPERTS | {"forked": ((64,), 6 * 4096, kind), "behind": ((64,), 6 * 4096 + 512)})}), experts=4)
    packed("and in safetensors", folder("dtype", {"model.safetensors": good, "f.safetensors": safetensors(
        other, dtype="F8_E3M4")}), experts=4)


def quantised_experts():
    """They hardly shrink: a note says so, if they are coded."""
    source = folder("quantised", {"a.gguf": gguf(GGUF_EXPERTS, data=0, kind=8) + os.urandom(6 * 4096)})
    packed("quantised experts", source, "--codec=auto", experts=4, notes=[("packing saves about 0.0 %", "without packing"), ("are quantised (Q8_0) and do not shrink",)])
    packed("quantised experts, raw", source, experts=4)
    result = run(program("expertctl"), "info", source)
    check("info says so", "note: " in result.stderr and "do not shrink" in result.stderr, result.stderr)


def downloads_that_broke():
    good = safetensors(EXPERTS)
    odd = {
        "a.safetensors": (LFS, "is a Git LFS pointer"),
        "a.gguf": (LFS, "is a Git LFS pointer"),
        "b.safetensors": (b"\n<!doctype html><title>401", "is text, such as a web page"),
        "b.gguf": (b"Entry not found", "is text"),
        "h.safetensors": (bytes(4096), "begins with zeros"),
        "c.safetensors": (good[:-1], "the file ends too early: 1 bytes of data are missing"),
        "d.safetensors": (good[:100], "is past the end of the file"),
        "e.safetensors": (b"", "too short"),
        "f.gguf": (gguf(GGUF_EXPERTS)[:-1], "the file ends too early: at least 1 bytes of data are missing"),
        "g.gguf": (gguf(GGUF_EXPERTS)[:200], "past the end of the file"),
        "h.gguf": (b"<html>\n", "does not begin with \"GGUF\""),
    }
    for name, (data, why) in odd.items():
        source = folder(f"broken {name}", {"model.safetensors": good, name: data})
        refused(name, source, f"{source}/{name}: ", why)
        refused(f"{name}, alone", folder("broken", {name: data}) + "/" + name, why)
    source = folder("pointer", {"model.safetensors": good, "tokenizer.json": LFS})
    packed("a pointer that is no weights", source, experts=4, notes=[("tokenizer.json", "is a Git LFS pointer")])


def everywhere(what, source, *words):
    """No program takes it: mkexpertfs and info; expertctl up and verify; expertfs, which serves in place. --any packs
    it, --reclaim does not even then."""
    refused(what, source, *words)
    kept = contents(source) if os.path.isdir(source) else open(source, "rb").read()
    for name, command in (("up", [program("expertctl"), "up", source]),
                          ("verify", [program("expertctl"), "verify", source]),
                          ("expertfs", [program("expertfs"), source, scratch("mnt")])):
        os.makedirs(scratch("mnt"), exist_ok=True)
        result = run(*command)
        check(f"{what}: {name} refuses it", result.returncode == 1 and all(word in result.stderr for word in words),
              result.stderr)
    for more in ([], ["--any"]):
        result = run(program("mkexpertfs"), "-q", "--reclaim", "--yes", *more, source, scratch("reclaimed.efs"))
        check(f"{what}: --reclaim {more} refuses it", result.returncode == 1 and
              all(word in result.stderr for word in words) and "--any" not in result.stderr, result.stderr)
    now = contents(source) if os.path.isdir(source) else open(source, "rb").read()
    check(f"{what}: it is as it was", now == kept and not os.path.exists(scratch("reclaimed.efs.reclaim")))


def downloads_that_did_not_end():
    """Programs that download leave a file of another name meanwhile."""
    good, more = safetensors(EXPERTS), safetensors({"model.norm.weight": 512})
    ends = {".aria2": "aria2", ".st": "axel", ".part": "Firefox, curl", ".crdownload": "Chrome", ".incomplete": "hf",
            ".partial": "rclone", ".downloadInProgress": "llama.cpp", ".!qB": "qBittorrent"}
    for end in ends:
        source = folder(f"beside {end}", {"model.safetensors": good, "b.safetensors": more, "b.safetensors" + end: b"x"})
        everywhere(f"{end} beside a file", source, f"{source}/b.safetensors: ", f"b.safetensors{end} lies beside it")
        everywhere(f"{end} beside a file, alone", source + "/b.safetensors", f"{source}/b.safetensors: ", end)
        packed(f"{end} beside another file", source + "/model.safetensors", experts=4)
        source = folder(f"in place {end}", {"model.safetensors": good, "b.safetensors" + end: more})
        everywhere(f"{end} in place of a file", source, f"{source}/b.safetensors{end}: ", "did not end")
        source = folder(f"gguf {end}", {"a.gguf" + end: gguf(GGUF_EXPERTS)}) + "/a.gguf" + end
        everywhere(f"GGUF as {end}", source, f"{source}: ", "did not end")
    # Where the file is a link, the control file is in the folder of its target
    for end in (".aria2", ".st"):
        folder(f"target {end}", {"b": more, "b" + end: b"x"})
        source = folder(f"link {end}", {"model.safetensors": good})
        os.symlink(scratch(f"target {end}/b"), f"{source}/b.safetensors")
        refused(f"{end} beside the target of a link", source, f"{source}/b.safetensors: ", f"/b{end} lies beside it")
        refused(f"{end} beside the target of a link, alone", source + "/b.safetensors", f"{source}/b.safetensors: ",
                f"/b{end} lies beside it")
    for name in ("tokenizer.json", "README"):
        source = folder(f"beside {name}", {"model.safetensors": good, name: "text", name + ".aria2": b"x"})
        everywhere(f"{name} and its .aria2", source, f"{source}/{name}: ", f"{name}.aria2 lies beside it")
    source = folder("browser", {"model.safetensors": good, "config.json": "", "config.json.part": "{"})
    everywhere("config.json, empty, and its .part", source, f"{source}/config.json: ", "config.json.part lies beside it")
    source = folder("blob", {"model.safetensors": good, "blobs/4d7a.incomplete": more[:100]})
    refused("a blob of the hub", source, f"{source}/blobs/4d7a.incomplete: ", "did not end")
    source = folder("temporary", {"model.safetensors": good, "._____temp/b.safetensors": more})
    refused("the folder of ModelScope", source, f"{source}/._____temp/b.safetensors: ", "did not end")
    source = folder("ollama", {"model.safetensors": good, "sha256-4d7a-partial": gguf(GGUF_EXPERTS), "sha256-4d7a-partial-0": "{}"})
    refused("a blob of ollama", source, f"{source}/sha256-4d7a-partial: ", "did not end")
    index = json.dumps({"weight_map": {"model.norm.weight": "blob"}})
    source = folder("named", {"model.safetensors": good, "model.safetensors.index.json": index, "blob": more, "blob.st": b"x"})
    refused("a file that the index names", source, f"{source}/blob: ", "blob.st lies beside it")
    # Other files with such names
    packed("files that are no downloads", folder("similar", {
        "model.safetensors": good, "notes.st": "of Smalltalk", "b.st": more, "chapter.part": "text", "x.partial": "text",
        "README": "text", "README.part": "text", "tokenizer.json": "{}", "tokenizer.json.partial": "text",
        "b.aria2": "text", "a.aria2.txt": "text", "sha256-partial": "text", "poem-partial": "text"}), experts=4)


def folders_that_are_no_part():
    good = {"model.safetensors": safetensors(EXPERTS), "config.json": "{}"}
    tag = "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache"
    odd = {".git/objects/a": "git", "lost+found/model.safetensors": "fsck", ".Trash-1000/files/model.gguf": "waste",
           ".snapshot/daily/model.safetensors": good["model.safetensors"], ".ipynb_checkpoints/config-checkpoint.json": "Jupyter",
           "kept/CACHEDIR.TAG": tag, "kept/a.safetensors": "text", ".cache/huggingface/download/model.safetensors.metadata": "1",
           ".Trashes/b": "waste", "sub/.zfs/snapshot/model.gguf": "text"}
    packed("a checkpoint", folder("clean", good), experts=4)
    clean = open(scratch("out.efs"), "rb").read()
    for path, data in odd.items():
        where = next(path[:at] for at in (path.find("/"), path.find("/", 4), path.find("/", 7), len(path))
                     if path[:at] not in (".cache", "sub"))
        source = folder(f"no part {where.replace('/', ' ')}", good | {path: data} | ({"kept/a.safetensors": "x"} if "kept" in path else {}))
        result = pack(source)
        check(f"{where}: packed with a note", result.returncode == 0 and result.stderr.startswith(f"mkexpertfs: note: {where}: ") and
              "is not packed" in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr)
        check(f"{where}: not in the store", open(scratch("out.efs"), "rb").read() == clean)
    source = folder("no part", good | odd)
    result = pack(source)
    check("all of them", "8 more folders are not packed" in result.stderr and open(scratch("out.efs"), "rb").read() == clean, result.stderr)
    # A copy of a mount
    copied = {".expertfs/config": "store a.efs\n", ".expertfs/stat": "reads 1\n", "experts/L00/E000.safetensors": safetensors(EXPERTS)}
    result = pack(folder("copy", good | copied))
    check("a copy of a mount: once", "copied from" in result.stderr and open(scratch("out.efs"), "rb").read() == clean, result.stderr)
    for name in (".expertfs/config", ".expertfs/stat"):
        packed(f"experts without {name}", folder(f"own {name[10:]}", good | {path: data for path, data in copied.items() if path != name}),
               experts=4, notes=[("experts", "of its own"), ("experts/L00", "packed without experts"), ("experts/L00", "stored once")])
    # Similar names, and the folder itself
    packed("other names", folder("parts", good | {"git/a": "1", "lost+found": "2", "Trash-1/a": "3", "b/CACHEDIR.TAG": "text",
           "huggingface/a": "4", "a.cache/huggingface/b": "5", ".Trash": "6", "CACHEDIR.TAG": tag}), experts=4)
    packed("in such a folder", folder("lost+found", good), experts=4)
    # What `hf download --local-dir` has not finished
    source = folder("hub", good | {".cache/huggingface/download/bW9kZWw=.4d7a.incomplete": "half"})
    everywhere("a download of hf", source, f"{source}/.cache/huggingface/download/bW9kZWw=.4d7a.incomplete: ", "did not end")
    check("and it is not packed", open(scratch("out.efs"), "rb").read() == clean)


def folders_that_cannot_be_read():
    good = {"model.safetensors": safetensors(EXPERTS), "config.json": "{}"}
    for name, mode in (("closed", 0o000), ("listed", 0o444)):
        source = folder(f"a {name} folder", good | {f"{name}/a.txt": "text"})
        os.chmod(SCRATCH, 0o755)
        os.chmod(f"{source}/{name}", mode)
        user = [] if os.geteuid() else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.makedirs(scratch("theirs"), exist_ok=True)
        os.chmod(scratch("theirs"), 0o777)
        for options, rc in ((), 1), (("--any",), 0):
            result = run(*user, program("mkexpertfs"), "-f", *options, source, scratch("theirs/out.efs"))
            line = result.stderr.splitlines()[-1 if rc == 0 else 0]
            check(f"a {name} folder {options}: named", result.returncode == rc and f"{name}" in line and
                  "Permission denied" in line and ("--any" in result.stderr) == bool(rc), result.stderr)
        os.chmod(f"{source}/{name}", 0o755)


def holes():
    """Where nothing was written, a file has a hole, whose bytes read as zeros."""
    def punch(path, offset, size):
        with open(path, "r+b") as file:
            if run("fallocate", "-p", "-o", str(offset), "-l", str(size), path).returncode:
                skip("the file system of the test has no holes")

    names = [f"model.layers.{layer}.mlp.experts.0.up_proj.weight" for layer in range(3)]
    data = safetensors({name: 1 << 20 for name in names})
    begin = 8 + int.from_bytes(data[:8], "little")
    for what, offset, size in (("in the middle", (1 << 20) + 65536, 65536), ("of one page at the end", (3 << 20) - 4096, 8192),
                               ("over all but the first page", 4096, 3 << 20)):
        source = folder(f"hole {what}", {"model.safetensors": data, "config.json": "{}"})
        punch(f"{source}/model.safetensors", offset, size)
        everywhere(f"a hole {what}", source, f"{source}/model.safetensors: ", "has a hole at offset ",
                   names[min((offset - begin) // (1 << 20), 2) if offset > 4096 else 0])
    everywhere("a hole, alone", source + "/model.safetensors", "model.safetensors: has a hole at offset ", "cp --sparse=never")
    run("cp", "--sparse=never", source + "/model.safetensors", source + "/copy")
    os.rename(source + "/copy", source + "/model.safetensors")
    packed("zeros that a copy had left out, written", source, experts=3)
    names = ("blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight")
    data = gguf({name: ((64, 64, 64), i << 20) for i, name in enumerate(names)}, data=0) + b"7" * (2 << 20)
    source = folder("hole gguf", {"a.gguf": data})
    punch(f"{source}/a.gguf", (1 << 20) + 8192, 1 << 19)
    everywhere("a hole in GGUF", source, f"{source}/a.gguf: ", "has a hole at offset ", names[1])
    # Space that was allocated and not written
    source = folder("allocated", {"a.gguf": data[:1 << 20]})
    run("fallocate", "-o", str(1 << 20), "-l", str(len(data) - (1 << 20)), f"{source}/a.gguf")
    everywhere("allocated and not written", source, f"{source}/a.gguf: ", f"{1 << 20}, in {names[0]}")
    with open(f"{source}/a.gguf", "r+b") as file:  # many extents, in part written
        for at in range(1 << 20, len(data) - 8192, 8192):
            file.seek(at)
            file.write(b"7" * 4096)
    everywhere("written every second page", source, f"{source}/a.gguf: ", f"{(1 << 20) + 4096}, in {names[1]}")
    with open(f"{source}/a.gguf", "r+b") as file:
        file.write(data)
    packed("written meanwhile", source, experts=128)
    # Between tensors, and in files that have none
    text = gguf({name: ((64, 64, 64), 3 * i << 20) for i, name in enumerate(names)}, data=0) + b"7" * (4 << 20)
    source = folder("between", {"a.gguf": text, "b.bin": bytes(1 << 20)})
    punch(f"{source}/a.gguf", (1 << 20) + 8192, 1 << 20)
    punch(f"{source}/b.bin", 0, 1 << 20)
    packed("a hole between tensors", source, experts=128)


def indexes():
    """An index is used, or a note says why not; a missing file that it names is an incomplete download."""
    good = safetensors(EXPERTS)

    def source(name, files, index, more={}):
        text = index if isinstance(index, (bytes, str)) else json.dumps({"weight_map": index})
        return folder(f"index of {name}", {"model.safetensors": good, "model.safetensors.index.json": text} | files | more)

    # Indexes that Python cannot read or use
    for what, index, why in (("half a file", b'{"weight_map": {"x": "gone.saf', "line 1"),
                             ("a list", "[]", "weight_map"),  # unsloth-zoo 1249
                             ("a map of numbers", '{"weight_map": {"x": 7}}', 'file of "x" is not a string'),
                             ("half a pair in UTF-8", b'{"a": "\xed\xa0\x80", "weight_map": {"x": "gone.safetensors"}}', "0xed"),
                             ("UTF-16", '{"weight_map": {"x": "gone.safetensors"}}'.encode("utf-16"), "line 1"),
                             ("nothing", b"", "line 1")):
        packed(what, source(what, {}, index), experts=4,
               notes=[("model.safetensors.index.json", "cannot be read as an index", why)])
    # 40 MB for 400,000 tensors; 129 MiB
    large = json.dumps({"weight_map": {f"model.layers.{n}.{'x' * 60}": "gone.safetensors" for n in range(400000)}})
    refused("an index of 40 MB", source("40 MB", {}, large), "gone.safetensors is missing")
    huge = source("129 MiB", {}, '{"weight_map": {"x": "gone.safetensors"}}')
    os.truncate(f"{huge}/model.safetensors.index.json", 129 << 20)
    result = pack(huge)
    check("an index of 129 MiB: told, with the limit", result.returncode == 0 and
          "index.json: cannot be read as an index: 135266304 bytes; 134217728 are the most" in result.stderr, result.stderr)
    os.remove(f"{huge}/model.safetensors.index.json")

    # A model whose parts were merged, with the old index
    parts = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(EXPERTS)}
    whole = sum(EXPERTS.values())
    for what, total, extra, held in (("merged", whole, {}, True), ("merged, no size", None, {}, False), ("merged, another size", whole + 2, {}, False),
                                     ("merged, a tensor missing", whole, {"model.norm.weight": "model-00002-of-00002.safetensors"}, False)):
        merged = source(what, {}, json.dumps({"metadata": {"total_size": total} if total else {}, "weight_map": parts | extra}))
        if held:
            packed(what, merged, experts=4, notes=[("model.safetensors.index.json", "its tensors are in other files")])
            check("and served in place", run(program("expertctl"), "verify", merged).returncode == 0)
        else:
            refused(what, merged, "is missing")
    apart = source("merged, in another folder", {"sub/b.safetensors": good}, json.dumps({"metadata": {"total_size": whole}, "weight_map": parts}))
    os.remove(f"{apart}/model.safetensors")
    refused("merged, in another folder", apart, "is missing")

    # Files in folders, with unusual paths
    tensor, name = {"model.layers.7.mlp.experts.0.up_proj.weight": 8192}, "model.layers.7.mlp.experts.0.up_proj.weight"
    own = {tensor: "model.safetensors" for tensor in EXPERTS}
    refused("a file in a folder", source("a folder", {}, own | {name: "sub/x.safetensors"}), "sub/x.safetensors is missing")
    refused("a file in a folder that is there", source("another", {"sub/y.safetensors": safetensors(tensor)}, own | {
        name: "sub/x.safetensors"}), "sub/x.safetensors is missing")
    for path, odd in (("x.safetensors", "./x.safetensors"), ("x.safetensors", "sub/../x.safetensors"),
                      ("x.safetensors", ".//./x.safetensors"), ("sub/x.safetensors", "a/../sub//x.safetensors"),
                      ("sub/x.safetensors", "a/b/../../sub/x.safetensors")):
        files = {path: safetensors(tensor), "sub/note.txt": "text"}
        packed(f"{odd}: found", source(f"{len(odd)} {path[:3]}", files, own | {name: odd}), experts=5)
        refused(f"{odd}: missing", source(f"{len(odd)} {path[:3]} gone", {}, own | {name: odd}), f" {path} is missing")
    for odd in ("/x.safetensors", "../x.safetensors", "sub/../../x.safetensors"):  # Megatron-Bridge 4421
        refused(f"{odd}: outside", source(f"outside {len(odd)}", {"x.safetensors": safetensors(tensor)},
                                          own | {name: odd}), "x.safetensors lies outside of it", "index.json names")
    refused("no name", source("no name", {}, own | {name: ""}), '"" is missing')
    refused("a folder", source("a name of a folder", {"sub/a": "text"}, own | {name: "sub"}), " sub is missing")

    # A file that only the index identifies as weights
    packed("a shard of another name", source("a blob", {"blob": safetensors(tensor)}, own | {name: "blob"}), experts=5)
    both = ("model.safetensors.index.json names it", "packed as plain bytes")
    for path in ("blob", "x.safetensors"):
        packed(f"{path} with a hole", source(f"{path} with a hole", {path: safetensors(tensor, behind=b"x")},
               own | {name: path}), experts=4, notes=[(path, "the data has 8193 bytes", *both)])
        for what, data, why in (("text in the header", struct.pack("<Q", 6) + b"{1: 2}" + bytes(64), "JSON at offset"),
                                ("a header that is too long", struct.pack("<Q", 100000001) + b"{", "are the most")):
            refused(f"{path} with {what}", source(f"{path} with {what}", {path: data}, own | {name: path}),
                    f"/{path}: ", why, both[0])
    refused("a blob that broke off", source("broken blob", {"blob": safetensors(tensor)[:-1]}, own | {name: "blob"}),
            "/blob: ", "the file ends too early", "model.safetensors.index.json names it")
    refused("a blob that is a pointer", source("pointer blob", {"blob": LFS}, own | {name: "blob"}),
            "/blob: ", "is a Git LFS pointer", "model.safetensors.index.json names it")


def parts_by_their_names():
    """Parts numbered from 0, or without leading zeros, are complete when all are present."""
    def parts(name, numbers, count, digits=5, index=False):
        files = {f"model-{number:0{digits}}-of-{count:0{digits}}.safetensors": safetensors(
            {f"model.layers.{number}.mlp.experts.0.up_proj.weight": 8192}) for number in numbers}
        if index:
            files["model.safetensors.index.json"] = json.dumps({"weight_map": {str(n): n for n in files}})
        return folder(name, files)
    packed("parts from 0", parts("from 0", range(3), 3), experts=3)  # Ring-2.5-1T
    packed("parts from 0 with an index", parts("from 0 indexed", range(3), 3, index=True), experts=3)
    packed("parts from 1", parts("from 1", range(1, 4), 3), experts=3)
    packed("parts of 61, as Kimi-K2 has them", parts("kimi", range(1, 62), 61, digits=1), experts=61)
    packed("parts with gaps that the index knows of", parts("gaps", (2, 5, 9), 20, index=True), experts=3)
    refused("parts from 0, one missing", parts("one of 0", (0, 2), 3), "model-00001-of-00003.safetensors is missing")
    refused("parts from 0, the last one missing", parts("last of 0", (0, 1), 3), "model-00002-of-00003", "is missing")
    refused("parts of 61, one missing", parts("one of 61", [n for n in range(1, 62) if n != 9], 61, digits=1),
            "9-of-61.safetensors is missing")
    refused("part 0 alone", parts("alone", (0,), 3) + "/model-00000-of-00003.safetensors", "is one part of 3")
    packed("one part stands for all", parts("all by one", range(3), 3) + "/model-00001-of-00003.safetensors", experts=3)
    refused("one part for all, one missing", parts("two by one", (0, 2), 3) + "/model-00000-of-00003.safetensors",
            "model-00001-of-00003.safetensors is missing")


def parts_by_their_metadata():
    """Each part of a split GGUF file states its number: one under another name does not pass for the model."""
    def part(number, count=3):
        tensors = {f"blk.{number}.ffn_{name}_exps.weight": ((64, 8, 2), i * 4096)
                   for i, name in enumerate(("gate", "up", "down"))}
        return gguf(tensors, [("split.no", number), ("split.count", count)])
    names = [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    source = folder("gguf parts", {name: part(number) for number, name in enumerate(names)})
    packed("all parts", source, experts=6)
    packed("all by one part", f"{source}/{names[1]}", experts=6)
    packed("a merged file", folder("merged", {"a.gguf": part(0, 0)}), experts=2)
    packed("one part of one", folder("one of one", {"a.gguf": part(0, 1)}), experts=2)
    blobs = folder("blobs", {"4d7a" * 8 + str(number): part(number) for number in range(3)})
    links = folder("links", {})
    os.makedirs(links)
    for number, name in enumerate(names):
        os.symlink(f"{blobs}/{'4d7a' * 8}{number}", f"{links}/{name}")
    packed("links to blobs", f"{links}/{names[0]}", experts=6)
    os.symlink(f"{source}/{names[0]}", scratch("link.gguf"))
    wrong = "by its metadata, but not by its name"
    other = folder("renamed", {"a.gguf": part(0), "model-00002-of-00002.gguf": part(1), "model-00001-of-00002.gguf": part(0)})
    for what, path, number in (("renamed", f"{other}/a.gguf", 1), ("renamed, in its folder", other, 1),
                               ("a link", scratch("link.gguf"), 1), ("a blob", f"{blobs}/{'4d7a' * 8}1", 2),
                               ("another number of parts", f"{other}/model-00002-of-00002.gguf", 1)):
        refused(what, path, f"is part {number} of 3", wrong)
        os.makedirs(scratch("mnt"), exist_ok=True)
        served = run(program("expertfs"), "-o", "budget=64M,nostate", path, scratch("mnt"))
        if served.returncode == 0:
            run("umount", scratch("mnt"))
        check(f"{what}: not served", served.returncode != 0 and wrong in served.stderr, served)
    refused("a part twice", folder("twice", dict(zip(names, (part(0), part(0), part(2))))), f"/{names[1]}: is part 1 of 3", wrong)
    alone = run(program("mkexpertfs"), "--reclaim", "--yes", f"{source}/{names[0]}", scratch("reclaimed.efs"))
    check("--reclaim of one part names the way out", alone.returncode == 1 and
          "--reclaim takes only the folder that has them all" in alone.stderr, alone)
    check("... and nothing was freed", all(os.stat(f"{source}/{name}").st_blocks for name in names))


def several_models():
    """Experts are those of the model at the top, also in the mount; a note names further models."""
    model = safetensors(EXPERTS | {"model.norm.weight": 512}).replace(bytes(range(256)), b"M" * 256)
    draft = safetensors(EXPERTS | {"model.norm.weight": 512, "model.layers.7.mlp.experts.0.up_proj.weight": 8192,
                                   "draft.fc.weight": 512})
    old = safetensors(EXPERTS | {"model.norm.weight": 512, "old.weight": 512})
    index = json.dumps({"weight_map": {name: "model.safetensors" for name in EXPERTS}})
    cases = {
        "an index": {"model.safetensors.index.json": index},
        "a config.json each": {"config.json": "{}", "draft/config.json": "{}"},
        "nothing but their places": {},
        # vllm 54230, colibri 1479: files in the index contain tensors that it maps to other files
        "an index over both": {"draft/model.safetensors": old, "model.safetensors.index.json": json.dumps(
            {"weight_map": json.loads(index)["weight_map"] | {"model.norm.weight": "model.safetensors",
                                                              "old.weight": "draft/model.safetensors"}})},
    }
    for what, more in cases.items():
        source = folder(f"several, {what}", {"model.safetensors": model, "draft/model.safetensors": draft} | more)
        packed(f"a draft model beside the model, {what}", source, experts=4,
               notes=[("draft", "packed without")])
        if not os.path.exists("/dev/fuse"):
            continue
        mount = Mount(scratch("out.efs"))
        for name in ("L00/E000", "L01/E001"):
            data = open(mount / f"experts/{name}.safetensors", "rb").read()
            begin = 8 + int.from_bytes(data[:8], "little")
            for tensor, about in json.loads(data[8:begin]).items():
                if tensor in EXPERTS:
                    bytes_of = data[begin:][slice(*about["data_offsets"])]
                    check(f"{what}: {tensor} is of the model", bytes_of and set(bytes_of) == {ord("M")}, bytes_of[:64])
        mount.unmount()


def scales_of_experts():
    """An expert's file has its scales, packed and in place; chunk experts of GroveMoE have their own files."""
    scales = struct.pack("<2f", 3.5, 7.25)
    data = gguf(GGUF_EXPERTS | {"blk.1.ffn_up_chexps.weight": ((64, 8, 2), 6 * 4096),
                                "blk.1.ffn_up_exps.scale": ((2,), 7 * 4096)}, data=0) + os.urandom(7 * 4096) + scales
    source = folder("scales", {"a.gguf": data}) + "/a.gguf"
    packed("scales", source, "--codec=auto", "-q", experts=6)
    if not os.path.exists("/dev/fuse"):
        return
    for store in (scratch("out.efs"), source):
        mount = Mount(store)
        check(f"{store}: the files", mount.experts() == [f"experts/{name}.safetensors" for name in (
            "L00/E000", "L00/E001", "L01/E000", "L01/E001", "chunk-L01/E000", "chunk-L01/E001")], mount.experts())
        expert = open(mount / "experts/L01/E001.safetensors", "rb").read()
        begin = 8 + int.from_bytes(expert[:8], "little")
        about = json.loads(expert[8:begin]).get("blk.1.ffn_up_exps.scale", {})
        check(f"{store}: the scale", about.get("shape") == [] and about["dtype"] == "F32" and
              expert[begin:][slice(*about["data_offsets"])] == scales[4:], about)
        mount.unmount()


def indexes_that_are_too_large():
    """The suggested way out works."""
    def sparse(name, tensors, size):
        text = json.dumps(tensors).encode()
        os.makedirs(scratch(name))
        with open(scratch(f"{name}/model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size)
        result = run(program("mkexpertfs"), "-q", "--any", "--shard-size", "16K", scratch(name), scratch(f"{name}.efs"))
        check(f"{name}: refused", result.returncode == 1 and "the index of" in result.stderr, result.stderr)
        return "--shard-size" in result.stderr

    size = 1 << 36
    check("a tensor of 64 GiB: the hint names larger shards",
          sparse("large", {"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}, size))


def many_small_tensors():
    """Tensors of experts that share pages: each page is read once, not once for each tensor."""
    import resource
    source = folder("small", {"model.safetensors": safetensors({
        f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight": 12 for layer in range(48)
        for name in ("gate_proj", "up_proj") for expert in range(512)})})
    size = os.path.getsize(f"{source}/model.safetensors")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    packed("49,152 tensors of 12 bytes", source, experts=24576)
    read = 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)
    check("the disk is read once", read < 8 * size, (read, size))


def too_many_tensors():
    """The file is refused before its header is parsed."""
    names = "".join(f',"{n:x}":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{n + 1}]}}' for n in range(640001))
    header = ("{" + names[1:] + "}").encode()
    data = struct.pack("<Q", len(header)) + header + bytes(640001)
    refused_all("640,001 tensors", folder("640001", {"model.safetensors": data}), "model.safetensors: 640001 tensors; 640000")
    # Invalid at its end, which a parser would report
    refused_all("and JSON that is none", folder("640001 broken", {"model.safetensors": data[:8] + header[:-1] + b"!" + bytes(640001)}),
                "model.safetensors: 640001 tensors; 640000 are the most")
    half = {n: struct.pack("<Q", len(text)) + text + bytes(count) for n, count in (("a", 320001), ("b", 320000))
            for text in [("{" + names[1:].split(f',"{count:x}":')[0] + "}").encode()]}
    refused_all("in two files", folder("halves", {f"{n}.safetensors": text for n, text in half.items()}),
                "b.safetensors: 640001 tensors, with those of the files before it; 640000 are the most")
    head = b"GGUF" + struct.pack("<IQQ", 3, 640001, 0)
    refused_all("in GGUF", folder("640001 gguf", {"a.gguf": head + bytes(640001 * 24)}), "a.gguf: 640001 tensors; 640000")


def refused_all(what, source, *words):
    result = pack(source, "--any")
    check(f"{what}: refused with --any, too", result.returncode == 1 and all(word in result.stderr for word in words),
          result.stderr)


scales_of_experts()
indexes_that_are_too_large()
many_small_tensors()
too_many_tensors()
indexes()
files_that_are_not_understood()
quantised_experts()
parts_by_their_names()
parts_by_their_metadata()
several_models()
downloads_that_broke()
downloads_that_did_not_end()
folders_that_are_no_part()
folders_that_cannot_be_read()
holes()
done()
