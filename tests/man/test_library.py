# SPDX-License-Identifier: Apache-2.0
"""libexpertfs(3) has the prototypes of the headers; its example is compiled against the files of `make install`, with
the shared library and the archive, and run; the headers work from C++ and ctypes; the shared library exports no other
symbol."""
import ctypes
import glob
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

os.environ["EXPERTFS_STATE"] = scratch("state")
PREFIX = "/opt/expertfs"  # a folder that compilers do not search by default
ROOM = scratch("installed")
HEADERS = sorted(header for header in glob.glob(os.path.join(ROOT, "engine/*.h")) if "private" not in header)
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def squeeze(text):
    return re.sub(r"\s*([(),*])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


def header_prototypes(header):
    header = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    found = re.findall(r"^EFS_API\s+([^;{}]*?\))\s*(?:__attribute__[^;]*)?;", header, re.M)
    return {squeeze(one) for one in found}


def page_prototypes(page):
    functions = re.search(r"^\.Sh FUNCTIONS\n(.*?)^\.Sh ", page, re.M | re.S).group(1)
    functions = re.sub(r"/\*.*?\*/", " ", functions, flags=re.S)  # the description of a call
    blocks = "\n".join(re.findall(r"^\.Bd -literal\n(.*?)^\.Ed", functions, re.M | re.S))
    return {squeeze(one) for one in blocks.split(";") if one.strip()}


def names(prototypes):
    return {re.search(r"(efs_\w+)\(", one).group(1) for one in prototypes}


def listed_symbols(script):
    """efs_open@@EXPERTFS_0, ... of a version script."""
    script = re.sub(r"#.*", "", script)
    return {f"{name}@@{node}" for node, names_of in re.findall(r"(\w+)\s*\{\s*global:(.*?)local:", script, re.S)
            for name in re.findall(r"\w+", names_of)}


def flags(*options):
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{ROOM}{PREFIX}/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": ROOM}
    return run("pkg-config", *options, "expertfs", env=environment).stdout.split()


def compiled(what, *command):
    result = run(*command)
    return check(f"{what} compiles without a warning", result.returncode == 0, result.stderr)


ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": f"{ROOM}{PREFIX}/lib"}


def runs(what, *command):
    result = run(*command, env=ENVIRONMENT)
    check(f"{what} runs", result.returncode == 0, result.stdout + result.stderr)
    return result.stdout


page = open(os.path.join(ROOT, "man/libexpertfs.3")).read()
there, told = header_prototypes("".join(open(header).read() for header in HEADERS)), page_prototypes(page)
check(f"the page has the headers' {len(there)} prototypes", there and there == told,
      f"only on the page: {sorted(told - there)}; missing there: {sorted(there - told)}")

returning = re.search(r"^\.Sh RETURN VALUES\n(.*?)^\.Sh ", page, re.M | re.S).group(1)
described = set(re.findall(r"Fn (efs_\w+)", "".join(line for line in returning.splitlines(True) if line.startswith(".It "))))
returns = names(one for one in there if not one.startswith("void ")) | {"efs_read"}  # efs_read() reports to its callback
check("its section RETURN VALUES has each call that returns something", described == returns, described ^ returns)

if not shutil.which("make") or not shutil.which("pkg-config") or not shutil.which("cc"):
    skip("make, pkg-config and cc are needed for the rest")
installed = run("make", "--no-print-directory", "-C", ROOT, "-o", "all", f"BUILD={os.path.relpath(BUILD, ROOT)}",
                f"DESTDIR={ROOM}", f"PREFIX={PREFIX}", "install")
check("make install", installed.returncode == 0, installed.stdout + installed.stderr)
lib = f"{ROOM}{PREFIX}/lib"

symbols = {line.split()[-1] for line in run("nm", "-D", "--defined-only", f"{lib}/libexpertfs.so").stdout.splitlines()}
listed = listed_symbols(open(os.path.join(ROOT, "engine/libexpertfs.map")).read())
check(f"the list of symbols has the headers' {len(there)} calls", {one.split("@@")[0] for one in listed} == names(there),
      {one.split("@@")[0] for one in listed} ^ names(there))
versions = {one.split("@@")[1] for one in listed}
check("the shared library shows what is on the list, with its version, and nothing else", symbols - versions == listed,
      symbols - versions ^ listed)
soname = re.search(r"soname: .([^]]*)", run("readelf", "-d", f"{lib}/libexpertfs.so").stdout).group(1)
check("its soname is installed, and has the number of its symbols",
      os.path.exists(f"{lib}/{soname}") and versions == {f"EXPERTFS_{soname[-1]}"}, (soname, versions))
bytes_of = ctypes.CDLL(f"{lib}/libexpertfs.so").efs_struct_bytes
bytes_of.restype = ctypes.c_size_t
structs = {name for header in HEADERS if "protocol" not in header
           for name in re.findall(r"^struct (\w+) \{", open(header).read(), re.M)}
check("efs_struct_bytes() knows the public structs, and no other",
      len(structs) > 15 and all(bytes_of(name.encode()) > 0 for name in structs) and bytes_of(b"efs_client") == 0,
      [name for name in structs if not bytes_of(name.encode())])
headers = {os.path.basename(header) for header in HEADERS}
check("the headers are installed, and no others", set(os.listdir(f"{ROOM}{PREFIX}/include")) == headers and
      headers >= {"expertfs.h", "expertfs-stats.h", "expertfs-pack.h", "expertfs-compute.h", "expertfs-protocol.h"}, headers)

model = make_model("model", "--preset=tiny-qwen3-moe")
store = make_store(model)
example = re.search(r"^\.Sh EXAMPLES\n.*?^\.Bd -literal[^\n]*\n(.*?)^\.Ed", page, re.M | re.S).group(1)
with open(scratch("example.c"), "w") as file:
    file.write(example.replace("\\e", "\\").replace("\\-", "-").replace("\\&", ""))
mount = None
if os.path.exists("/dev/fuse"):
    mount = Mount(store, "budget=128M")
else:
    note("no /dev/fuse: the example was not run on a mount")
experts = [7, 0, 3]
wanted = set()
for expert in experts:
    wanted |= {f"{expert} {name} BF16 {len(data)} {data[0]:02x}" for name, data in tensors_of(model).items()
               if f"layers.1.mlp.experts.{expert}." in name}
shared, archive = flags("--libs"), [f"{lib}/libexpertfs.a", *(f for f in flags("--static", "--libs") if f != "-lexpertfs")]
ways = [("the example", "cc", "-std=gnu11", shared), ("the example with the archive", "cc", "-std=gnu11", archive)]
if shutil.which("g++"):
    ways += [("the example in C++", "g++", "-xc++ -std=c++11", shared)]
else:
    note("no g++: nothing was compiled as C++")
for what, compiler, standard, libraries in ways:
    if not compiled(what, compiler, *standard.split(), *WARNINGS, *flags("--cflags"), scratch("example.c"), "-o",
                    scratch("example"), "-xnone", *libraries):
        continue
    for path in [store] + ([mount.path] if mount else []):
        output = runs(f"{what}, {'a store' if path == store else 'a mount'}", scratch("example"), path, "1", *map(str, experts))
        lines = output.splitlines()
        check("it tells each tensor of the experts once", len(lines) == len(wanted) == 9 and set(lines) == wanted, output)
        failed = run(scratch("example"), path, "1", "99", env=ENVIRONMENT)
        check("an expert that is not there", failed.returncode == 1 and "99" in failed.stderr, failed)
check("without an argument it fails", run(scratch("example"), env=ENVIRONMENT).returncode == 2)

# A program that opens mounts only has client/ and what that needs of base/ and source/ in it, and nothing of the engine.
rooms = {room: {os.path.basename(name)[:-2] for name in os.listdir(os.path.join(ROOT, "engine", room)) if name.endswith(".c")}
         for room in ("base", "source", "client", "store")}
with open(scratch("mount.c"), "w") as file:
    file.write("#include <expertfs.h>\n#include <stdio.h>\nint main(int argc, char **argv)\n{\n"
               "    struct efs_error error;\n    struct efs_client *client;\n    struct efs_client_request *request;\n"
               "    struct efs_listed_expert *experts;\n    const struct efs_tensor *tensors;\n"
               "    const struct efs_need need = {1, 1};\n    const struct efs_routing routing = {.layer = 0};\n"
               "    uint32_t count, index;\n    errint_t status;\n"
               "    if (argc < 2 || OPEN < 0 || efs_client_experts(client, &experts, &count, &error) < 0 ||\n"
               "        efs_client_begin(client, \"\", 0, &need, 1, EFS_FORM_ANY, &request, &error) < 0 ||\n"
               "        efs_client_wait(request) < 0 || efs_client_event(request) < 0 ||\n"
               "        efs_client_wait_any(request, -1, &index, &status) != 1 ||\n"
               "        efs_client_tensors(request, 0, &tensors, &count) < 0 ||\n"
               "        efs_observe(client, &routing, &error) < 0 || efs_hint(client, &routing, &error) < 0)\n        return 1;\n"
               "    printf(\"%u tensors\\n\", count);\n    efs_client_drop(request, 0);\n"
               "    efs_client_release(request);\n    efs_client_close(client);\n}\n")
taken, bytes_ = {}, {}
for what, call in (("mounts", "efs_client_open_mount(argv[1], &client, &error)"),
                   ("mounts and stores", "efs_client_open(argv[1], NULL, &client, &error)")):
    if compiled(f"a program that opens {what}", "cc", "-std=gnu11", *flags("--cflags"), f"-DOPEN={call}", scratch("mount.c"), "-o",
                scratch("mount"), "-Wl,--as-needed", *archive, f"-Wl,-Map={scratch('map')}"):
        with open(scratch("map")) as file:
            taken[what] = set(re.findall(r"libexpertfs\.a\((\w+)\.o\)", file.read()))
        bytes_[what] = os.path.getsize(scratch("mount"))
        if mount:
            check("it gets an expert", runs(f"the program that opens {what}", scratch("mount"), mount.path) == "3 tensors\n")
known = rooms["base"] | rooms["source"] | rooms["client"]
check("a program that opens mounts has no object of the engine", taken.get("mounts") and taken["mounts"] <= known, taken.get("mounts", set()) - known)
check("one that opens stores has", len(taken.get("mounts and stores", set()) & rooms["store"]) > 5)
note(f"opens mounts: {len(taken.get('mounts', ()))} objects, {bytes_.get('mounts')} bytes; stores, too: "
     f"{len(taken.get('mounts and stores', ()))} objects, {bytes_.get('mounts and stores')} bytes")

with open(scratch("plus.cc"), "w") as file:
    file.write("#include <expertfs.h>\n#include <cstdio>\nint main(int, char **argv)\n{\n    efs_client_options options{};\n"
               "    efs_error error{};\n    options.budget_bytes = 256 << 20;\n"
               "    efs_client *client = nullptr;\n    efs_client_request *request = nullptr;\n    efs_need need{1, 1};\n"
               "    if (efs_client_open(argv[1], &options, &client, &error) < 0 ||\n"
               "        efs_client_begin(client, \"\", 0, &need, 1, EFS_FORM_FULL, &request, &error) < 0 ||\n"
               "        efs_client_wait(request) < 0)\n        return 1;\n"
               "    std::printf(\"%u files\\n\", efs_file_count(efs_client_fs(client)));\n"
               "    efs_client_release(request);\n    efs_client_close(client);\n}\n")
if shutil.which("g++"):
    for standard in ("c++11", "c++20"):
        if compiled(f"the header as {standard}", "g++", f"-std={standard}", *WARNINGS, *flags("--cflags"), scratch("plus.cc"),
                    "-o", scratch("plus"), *flags("--libs")):
            check("C++ opens the store", re.fullmatch(r"\d+ files\n", runs("the C++ program", scratch("plus"), store)))

for header in sorted(headers):  # each one compiles alone
    for compiler, standard in (("cc", "-xc -std=c11"), ("cc", "-xc -std=gnu11"), ("g++", "-xc++ -std=c++11"), ("g++", "-xc++ -std=c++20")):
        if shutil.which(compiler):
            with open(scratch("alone.c"), "w") as file:
                file.write(f"#include <{header}>\n#include <{header}>\nextern int nothing;\n")
            compiled(f"<{header}> {standard}", compiler, *standard.split(), "-pedantic", *WARNINGS, *flags("--cflags"),
                     "-fsyntax-only", scratch("alone.c"))

client = os.path.join(ROOT, "tests/clients/ctypes_client.py")
check("ctypes", "24 experts, 72 tensors, 0 different" in
      runs("the ctypes client", "/usr/bin/python3", client, f"{lib}/libexpertfs.so", store, model))
if mount:
    check("ctypes, of a mount", "24 experts, 72 tensors, 0 different" in
          runs("the ctypes client of a mount", "/usr/bin/python3", client, f"{lib}/libexpertfs.so", mount.path, model))
    mount.unmount()

removed = run("make", "--no-print-directory", "-C", ROOT, f"DESTDIR={ROOM}", f"PREFIX={PREFIX}", "uninstall")
left = [name for name in files_below(ROOM)]
check("make uninstall leaves nothing", removed.returncode == 0 and not left, left)
done()
