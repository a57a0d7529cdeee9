# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are not packed on an HTTP server, mounted in place by the address of a GGUF file, of a part of a split
one, of a safetensors file, or of an index: all files byte for byte, few requests for the headers; beside servers that
lie."""
from e2e import *

from http_server import Server
from split_gguf import cut_gguf

need_fuse()
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
for variable in list(os.environ):  # of the user who runs the tests
    if variable.startswith(("AWS_", "EXPERTFS_HTTP_", "HF_")) or variable in ("CURL_CA_BUNDLE", "EXPERTFS_CURL"):
        del os.environ[variable]
gguf = make_model("gguf", "-F", "qwen3-moe", "--format", "gguf", "-d", "256", "-i", "512", "-e", "8", "-l", "3", "--vocab", "1000")
gguf = next(os.path.join(gguf, name) for name in files_below(gguf) if name.endswith(".gguf"))
folder = make_model("safetensors", *SMALL)
shards = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
INDEX = "model.safetensors.index.json"


def served(names, at=folder):
    return {f"/some folder/{name}": open(os.path.join(at, name), "rb").read() for name in names}


def same(mount, files, what):
    """Whether the mount has these files and no other ones, and their bytes."""
    want = {path.rsplit("/", 1)[1]: data for path, data in files.items()}
    names = [name for name in files_below(mount.path) if not name.startswith(("experts/", ".expertfs/"))]
    check(f"{what}: the files", names == sorted(want), names)
    check(f"{what}: their bytes", all(open(mount / name, "rb").read() == data for name, data in want.items()), mount.log_text())
    experts = mount.experts()
    check(f"{what}: has experts", len(experts) == 24, len(experts))


whole = open(gguf, "rb").read()
probe = Server({"/x": whole})
if "libcurl" in ctl("info", probe.url + "/x").stderr:
    skip("libcurl is not installed")
probe.close()

print("-- a GGUF file")
files = {"/some folder/model Q8+1.gguf": whole}
server = Server(files)
address = server.url + "/some%20folder/model%20Q8%2B1.gguf"
result = ctl("info", address)
check("expertctl info", result.returncode == 0, result.stderr)
check("its header is read by few requests", len(server.taken()) <= 3)
mount = Mount(address, OPTIONS)
same(mount, files, "GGUF")
generator = random.Random(1)
with open(mount / "model Q8+1.gguf", "rb") as file:
    bad = 0
    for _ in range(100):
        at, count = generator.randrange(len(whole)), generator.randrange(1, 100000)
        file.seek(at)
        bad += file.read(count) != whole[at:at + count]
    check("reads anywhere", bad == 0, bad)
local = Mount(gguf, OPTIONS)
name = local.experts()[3]
check("an expert is that of a local mount", open(mount / name, "rb").read() == open(local / name, "rb").read())
local.unmount()
server.files[next(iter(files))] = bytes(len(whole))
result = ctl("info", address)
check("a file of zeros is refused", result.returncode == 1 and "begins with zeros" in result.stderr, result.stderr)
mount.unmount()
server.close()

print("-- a safetensors folder by its index")
names = [INDEX, "config.json", *shards]
files = served(names)
files.update({path: data for path, data in served([name for name in ("tokenizer.json", "generation_config.json") if os.path.exists(f"{folder}/{name}")]).items()})
server = Server({**files, "/some folder/unrelated.bin": b"x"})
address = server.url + "/some%20folder/" + INDEX
mount = Mount(address, OPTIONS)
count = len(server.taken())
check("the headers are read by few requests", count <= 2 * len(files) + 9, count)
same(mount, files, "index")
check("expertctl verify", ctl("verify", address).returncode == 0)
path = "/some folder/" + shards[-1]
mount.unmount()
mount = Mount(address, OPTIONS)
server.files[path] = server.files[path][:-1] + b"\1"
error = error_of(lambda: open(mount / shards[-1], "rb").read())
check("one file changes: EIO", error == "EIO", error)
wait_until(lambda: "changed since" in mount.log_text())
check("which the log names", mount.log_text().count(f"{shards[-1]}: the file changed since it was opened") == 1, mount.log_text())
check("the other files are served", open(mount / shards[0], "rb").read() == files["/some folder/" + shards[0]])
mount.unmount()
server.close()

print("-- one safetensors file")
single = make_model("single", *NARROW)
files = served(["model.safetensors"], single) if os.path.exists(f"{single}/model.safetensors") else {}
if files:
    server = Server(files)
    mount = Mount(server.url + "/some%20folder/model.safetensors", OPTIONS)
    check("its bytes", open(mount / "model.safetensors", "rb").read() == next(iter(files.values())))
    mount.unmount()
    server.close()

print("-- parts of a split file")
cut_gguf(gguf, scratch("cut"))
files = served(sorted(os.listdir(scratch("cut"))), scratch("cut"))
server = Server(files)
mount = Mount(server.url + "/some%20folder/cut-00001-of-00002.gguf", OPTIONS)
same(mount, files, "split")
mount.unmount()
server.close()
server = Server({"/parts/cut-00001-of-00002.gguf": whole})
result = ctl("info", server.url + "/parts/cut-00001-of-00002.gguf")
check("a part is missing", result.returncode == 1 and "cut-00002-of-00002.gguf: the server has no such file" in result.stderr, result.stderr)
server.close()

print("-- refused")
good = json.loads(served([INDEX])["/some folder/" + INDEX])
for what, index, text in (
        ("a name that leads out", {"weight_map": {"a": "../secret.safetensors"}}, "not next to it"),
        ("an absolute name", {"weight_map": {"a": "/etc/passwd"}}, "not next to it"),
        ("no name", {"weight_map": {"a": 3}}, "not next to it"),
        ("an empty name", {"weight_map": {"a": ""}}, "not next to it"),
        ("no map", {"x": 1}, "no weight_map"),
        ("no object", [1], "no weight_map"),
        ("a missing file", {"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors: the server has no such file")):
    server = Server({f"/{INDEX}": json.dumps(index).encode()})
    result = ctl("info", f"{server.url}/{INDEX}")
    check(what, result.returncode == 1 and text in result.stderr and len(result.stderr.splitlines()) <= 2, result.stderr)
    server.close()
for what, data in (("a cut file", whole[:len(whole) // 2]),
                   ("a page of HTML", b"<!DOCTYPE html>" + b" " * 5000)):
    server = Server({"/model.gguf": data})
    result = ctl("info", server.url + "/model.gguf")
    check(what, result.returncode == 1 and len(result.stderr.splitlines()) <= 2 and result.stderr, result.stderr)
    server.close()

print("-- a token of the hub")
server = Server({"/ORG/NAME/resolve/main/model.gguf": whole})
server.token = "hf_secret"
address = server.url + "/ORG/NAME/resolve/main/model.gguf"
result = ctl("info", address, HF_ENDPOINT=server.url)
check("without it", result.returncode == 1 and "HF_TOKEN" in result.stderr, result.stderr)
result = ctl("info", address, HF_ENDPOINT=server.url, HF_TOKEN="hf_secret")
check("with it", result.returncode == 0, result.stderr)
result = ctl("info", address, HF_TOKEN="hf_secret")
check("it is not sent to another server", result.returncode == 1 and not any("Authorization" in headers for _, headers in server.taken()[-1:]),
      result.stderr)
server.close()
done()
