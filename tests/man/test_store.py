# SPDX-License-Identifier: Apache-2.0
"""expertfs-store(5) is complete and correct: its tables agree with engine/store/layout.h, its example is what the
programs write, and a reader written from it restores every kind of checkpoint and refuses damage."""
import json
import os
import random
import re
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "e2e")]
from e2e import *

try:
    import read_store
except ImportError as why:
    skip(str(why))

page = open(os.path.join(ROOT, "man", "expertfs-store.5")).read()
mkexpertfs = program("mkexpertfs")


def rows(head):
    """The rows of the literal table whose first row starts with `head`."""
    begin = page.index("\n" + head) + len(head)
    lines = page[page.index("\n", begin) + 1:].splitlines()
    return [line.split() for line in lines[:lines.index(".Ed")]]


print("-- the page and engine/store/layout.h")
claims = []
C_TYPE = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "char": "char",
          "table": "struct efs_disk_table"}
for name, size in re.findall(r"^struct (\w+), (\d+) bytes$", page, re.M):
    c_name = f"struct efs_disk_{name}"
    claims.append(f"sizeof({c_name}) == {size}")
    end = 0
    for offset, kind, field, *_ in rows(f"struct {name}, {size} bytes\noffset"):
        kind, count = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", kind).groups()
        claims.append(f"offsetof({c_name}, {field}) == {offset}")
        claims.append(f"sizeof((({c_name} *)0)->{field}) == {count or 1} * sizeof({C_TYPE[kind]})")
        claims.append(f"{offset} == {end}")
        end = int(offset) + int(count or 1) * {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "char": 1, "table": 32}[kind]
    claims.append(f"{end} == {size}")
tables = rows(" number  table")
claims += [f"EFS_TABLE_{name} == {number}" for number, name, *_ in tables] + [f"EFS_TABLE_COUNT == {len(tables)}"]
claims += [f"sizeof({c}) == {size}" for _, _, size, _, *rest in tables if rest and rest[0] != "no"
           for c in [f"struct efs_disk_{rest[0]}"] if rest[0].isalpha() and size != "1"]
codecs = rows(" codec  name")
claims += [f"EFS_CODEC_{name.upper()} == {number}" for number, name, *_ in codecs]
claims += [f"EFS_CODEC_COUNT == {len(codecs)}"]
formats = rows(" format  name")
claims += [f"EFS_FORMAT_{name.upper()} == {number}" for number, name, *_ in formats]
claims += [f"EFS_FORMAT_COUNT == {len(formats)}"]
types = [pair for row in rows(" dtype  name") for pair in zip(row[0::2], row[1::2])]
claims += [f"EFS_DTYPE_{name} == {number}" for number, name in types] + [f"EFS_DTYPE_COUNT == {len(types) + 1}"]
claims += ["EFS_DTYPE_GGML == 256", "EFS_VERSION == 3", "EFS_VERSION_OLDEST == 2", "EFS_INCOMPAT_CHECKS == 1", "EFS_ALIGN == 4096", "EFS_CHUNK_ALIGN == 64", "EFS_TABLE_PLACES == 16",
           "EFS_INCOMPAT_KNOWN == 1", "EFS_COMPAT_KNOWN == 1", "EFS_COMPAT_FILE_FLAGS == 1", "EFS_FILE_OTHER_MODEL == 1", "EFS_BLOCK == 8192", "EFS_SPAN == 32768", "EFS_SHORT_BLOCK == 1024", "EFS_CHECKS_BLOCK == 64", "EFS_CHECKS_PER_BLOCK == 15",
           "EFS_SHARD_ELEMENTS_MIN == 8192", "EFS_SHARD_ELEMENTS_MAX == 4194304", "EFS_MAX_DIMS == 8",
           "EFS_NONE == 4294967295", "EFS_RUN_BYTES == 64 << 20", "EFS_CASCADE_SLACK == 64",
           "EFS_GROUP_EXPERT == 0 && EFS_GROUP_DENSE == 1 && EFS_GROUP_BLOB == 2"]
check("nine structures, nine tables, 22 types are on the page", page.count("\nstruct ") == 9 and len(tables) == 9 and
      len(types) == 22, (page.count("\nstruct "), len(tables), len(types)))
compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if compiler:
    with open(scratch("page.c"), "w") as file:
        file.write('#include <stddef.h>\n#include "layout.h"\n#include "expertfs.h"\n#include "kernels.h"\n')
        file.writelines(f"static_assert({claim}, \"the page says {claim}\");\n" for claim in claims)
    made = run(compiler, "-std=gnu11", "-fsyntax-only", f"-I{ROOT}/engine", f"-I{ROOT}/engine/store", f"-I{ROOT}/kernels", scratch("page.c"))
    check(f"{len(claims)} offsets, sizes and numbers are those of the C headers", made.returncode == 0, made.stderr)
else:
    note("left out: no C compiler to compare with engine/store/layout.h")

print("-- the page's example")
told = re.search(r"1, -1, [-\d.,\s]+?(?=, and 1 for all)", page).group(0)
weights = [float(number) for number in told.split(",")]
bits = [struct.unpack("<I", struct.pack("<f", weight))[0] >> 16 for weight in weights + [1.0] * (8192 - len(weights))]
exponents = [int(n) for n in re.search(r"exponents of the tensor are ([\d\s]+) and so on", page).group(1).split()]
check("the exponents", exponents == [value >> 7 & 255 for value in bits[:len(exponents)]], exponents)
header = json.dumps({"w": {"dtype": "BF16", "shape": [8192], "data_offsets": [0, 16384]}}).encode()
with open(scratch("w.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + struct.pack("<8192H", *bits))
made = run(mkexpertfs, "--quiet", "--codec", "cascade", scratch("w.safetensors"), scratch("w.efs"))
check("packs", made.returncode == 0, made.stderr)
example = open(scratch("w.efs"), "rb").read()
shown = re.findall(r"^([0-9a-f]{8}): ((?:[0-9a-f]{2,4} )+) +(.*)$", page, re.M)
check("thirteen lines of xxd", len(shown) == 13, len(shown))
for offset, words, text in shown:
    wanted = bytes.fromhex(words.replace(" ", ""))
    there = example[int(offset, 16):][:len(wanted)]
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in there)
    check(f"line {offset}", there == wanted and text.strip() == letters.strip(), f"now {there.hex(' ', 2)} {letters}")

print("-- a reader written from the page")


def restores(name, source, *options):
    store = scratch("store.efs")
    made = run(mkexpertfs, "--quiet", "--force", *options, source, store)
    if not check(f"{name} {' '.join(options)}: packs", made.returncode == 0, made.stderr):
        return None
    out = scratch("out")
    shutil.rmtree(out, ignore_errors=True)
    got = run(sys.executable, os.path.join(HERE, "read_store.py"), store, out)
    compared = run("diff", "-r", source, out)
    # directories without files and modes are not stored
    check(f"{name} {' '.join(options)}: restored byte for byte", got.returncode == 0 and compared.returncode == 0,
          got.stderr + compared.stdout)
    return store


def odd_checkpoint():
    """Every format, sizes around blocks and shards, constants, noise, blobs of many kinds."""
    folder = scratch("odd")
    os.makedirs(f"{folder}/sub/deeper")
    generator = random.Random(7)
    tensors, data, entries = {}, b"", {}
    for dtype, size in (("BF16", 2), ("F16", 2), ("F32", 4), ("F8_E4M3", 1), ("F8_E5M2", 1), ("I32", 4), ("U8", 1)):
        for count in (0, 1, 3, 8191, 8192, 8193, 20001):
            values = generator.randbytes(count * size) if count % 2 else bytes(
                generator.choice(b"\x3c\x3d\x3e\xbc\x00") for _ in range(count * size))
            tensors[f"{dtype}.{count}"] = (dtype, count, values)
    for name, (dtype, count, values) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": [count], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(entries).encode()
    with open(f"{folder}/odd.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    words = "".join(generator.choice(("gate ", "expert ", "router ", "\n")) for _ in range(30000)).encode()
    for path, content in (("config.json", b"{}"), ("empty", b""), ("sub/words.txt", words),
                          ("sub/deeper/noise", generator.randbytes(50000)), ("sub/\u00fcber", bytes(100000))):
        with open(f"{folder}/{path}", "wb") as out:
            out.write(content)
    return folder


def large_checkpoint():
    """A tensor of each format that is packed for small reads, and one of bytes that no codec makes smaller."""
    folder = scratch("large")
    os.makedirs(folder)
    generator = random.Random(8)
    table = bytes(generator.choice((60, 61, 61, 62, 188, 190, 10)) for _ in range(256))
    entries, data = {}, b""
    for dtype, size in (("BF16", 2), ("F16", 2), ("F32", 4), ("F8_E4M3", 1), ("F8_E5M2", 1), ("U8", 1)):
        values = bytearray(generator.randbytes((1 << 20) + 4 * 777))
        if dtype != "U8":
            values[size - 1::size] = values[size - 1::size].translate(table)
        entries[dtype] = {"dtype": dtype, "shape": [len(values) // size], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(entries).encode()
    with open(f"{folder}/large.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    return folder


large = large_checkpoint()
for options, wanted in ((("--codec", "cascade"), 14), (("--codec", "zstd"), 3), (("--codec", "cascade", "--shard-size", "256K"), 40),
                        (("--small-reads", "none"), 0)):
    opened = read_store.Store(restores("large", large, *options))
    version, shards = struct.unpack_from("<I", opened.data, 8)[0], sum(shard[8] > 0 for shard in opened.shards)
    check(f"large {' '.join(options)}: {wanted} shards with page checksums", shards == wanted and version == 2 + (wanted > 0),
          (version, shards))
odd = odd_checkpoint()
for codec in ("auto", "cascade", "zstd", "lz4", "raw"):
    restores("odd", odd, "--codec", codec, "--shard-size", "16K")
for family in ("qwen3-moe", "mixtral", "deepseek-v2", "gpt-oss", "switch"):
    folder = scratch(family)
    made = run(program("mkmodel"), f"--preset=tiny-{family}", folder)
    check(f"{family}: made", made.returncode == 0, made.stderr)
    store = restores(family, folder)
folder = scratch("gguf")
made = run(program("mkmodel"), "--format=gguf", "--preset=tiny-qwen3-moe", folder)
check("gguf: made", made.returncode == 0, made.stderr)
store = restores("gguf", folder, "--shard-size=64K")

print("-- damage")
good = open(store, "rb").read()
shard = read_store.Store(store).shards[0]
places = {"magic": 0, "version": 8, "incompat": 16, "superblock": 60, "its checksum": 4090, "SM-chunk": shard[1],
          "strings": struct.unpack_from("<Q", good, 64)[0], "shards": struct.unpack_from("<Q", good, 64 + 6 * 32)[0]}
if shard[0]:
    places["E-chunk"] = shard[0] + 20
for name, offset in places.items():
    bad = bytearray(good)
    bad[offset] ^= 0x10
    open(scratch("bad.efs"), "wb").write(bad)
    got = run(sys.executable, os.path.join(HERE, "read_store.py"), scratch("bad.efs"), scratch("bad"))
    said = run(program("expertctl"), "verify", scratch("bad.efs"))
    check(f"{name}: refused by the reader and by expertctl verify", got.returncode == 1 and said.returncode == 1 and
          "Traceback" not in got.stderr, got.stderr)
open(scratch("bad.efs"), "wb").write(good[:-4096])
got = run(sys.executable, os.path.join(HERE, "read_store.py"), scratch("bad.efs"), scratch("bad"))
check("cut: refused", got.returncode == 1 and "Traceback" not in got.stderr, got.stderr)
done()
