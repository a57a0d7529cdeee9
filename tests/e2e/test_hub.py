# SPDX-License-Identifier: Apache-2.0
"""expertctl up ORG/NAME --remote: models on the Hub itself, by a server that imitates its API and its redirects to
another one: GGUF, split, safetensors; revisions pinned to their commit, expired links, tokens; and lists that lie."""
import pty

from e2e import *

import http_server
import library_client
from hub_server import LARGE, Hub
from http_server import after, status, times
from split_gguf import cut_gguf

need_fuse()
for variable in list(os.environ):  # of the user who runs the tests
    if variable.startswith(("AWS_", "EXPERTFS_HTTP_", "HF_")) or variable in ("CURL_CA_BUNDLE", "EXPERTFS_CURL", "EXPERTFS_INSECURE_HTTP"):
        del os.environ[variable]
os.environ.update(HF_HUB_CACHE=scratch("hub"), HOME=scratch("home"), XDG_DATA_HOME=scratch("data"), XDG_CACHE_HOME=scratch("cache"))
OPTIONS = ("-o", "budget=64M,direct_io=on,warm=off,nostate")
expertctl = program("expertctl")
A, B, C = "a1" * 20, "b2" * 20, "c3" * 20  # commits
made = make_model("gguf", "-F", "qwen3-moe", "--format", "gguf", "-d", "256", "-i", "512", "-e", "8", "-l", "3", "--vocab", "1000")
made = next(os.path.join(made, name) for name in files_below(made) if name.endswith(".gguf"))
whole = open(made, "rb").read()
changed = whole[:-1] + bytes([whole[-1] ^ 1])
folder = make_model("safetensors", *SMALL)
tensors = {name: open(f"{folder}/{name}", "rb").read() for name in os.listdir(folder) if os.path.isfile(f"{folder}/{name}")}
narrow = make_model("one", *NARROW)
single = {"model.safetensors": open(next(f"{narrow}/{name}" for name in os.listdir(narrow) if name.endswith(".safetensors")), "rb").read(),
          "config.json": open(f"{narrow}/config.json", "rb").read()}
cut_gguf(made, scratch("cut"))
parts = {name: open(f"{scratch('cut')}/{name}", "rb").read() for name in sorted(os.listdir(scratch("cut")))}
MODELS = {
    "org/Many-GGUF": {A: {"README.md": b"text", "Many-Q4_K_M.gguf": whole, "a b/Many Q4_K+.gguf": changed,
                          **{f"BF16/{name}": data for name, data in parts.items()}, "mmproj-F16.gguf": changed, "Many-F16.gguf": whole}},
    "org/One-GGUF": {A: {"One.gguf": whole}, B: {"One.gguf": changed}, C: {"One.gguf": whole}},
    "org/Plain": {A: {**tensors, "original/consolidated.safetensors": single["model.safetensors"]}},
    "org/Single": {A: single},
    "org/Secret": {A: {"One.gguf": whole}},
    "org/Gated": {A: {"One.gguf": whole}},
    "org/Text": {A: {"README.md": b"text", "pytorch_model.bin": b"x"}},
}
REFERENCES = {name: {"main": A} for name in MODELS}
REFERENCES["org/One-GGUF"].update({"refs/pr/1": B, "feature/x": B})
hub = Hub(MODELS, REFERENCES)
hub.private, hub.gated = {"org/Secret"}, {"org/Gated"}


def ctl(*words, **environment):
    return run(expertctl, *words, env={**os.environ, "HF_ENDPOINT": hub.url, **environment})


if "libcurl" in ctl("up", "--remote", "org/One-GGUF").stderr:
    skip("libcurl is not installed")
ctl("down", "org/One-GGUF")


def one_line(result, text, hint=""):
    lines = result.stderr.splitlines()
    return result.returncode == 1 and lines and text in lines[0] and hint in result.stderr and \
        (len(lines) == 2 and lines[1].startswith("hint: ") if hint else len(lines) == 1)


def serves(what, given, files, commit=A, **environment):
    """Mounts a model and compares it with its files, {name: bytes}; unmounts it."""
    mnt = scratch("mnt")
    os.makedirs(mnt, exist_ok=True)
    result = ctl("up", "--remote", *OPTIONS, given, mnt, **environment)
    good = check(f"{what}: mounted, and said in a line", result.returncode == 0 and len(result.stderr.splitlines()) == 2 and
                 f"{given} is served from {hub.url}/" in result.stderr and f"/resolve/{commit}/" in result.stderr and
                 re.search(f"a copy of what is read is kept in {scratch('cache')}/expertfs, up to [0-9.]+ .iB, half of what is free", result.stderr), result)
    if good:
        there = [name for name in files_below(mnt) if not name.startswith(("experts/", ".expertfs/"))]
        check(f"{what}: its files", there == sorted(files), there)
        check(f"{what}: their bytes", all(open(f"{mnt}/{name}", "rb").read() == data for name, data in files.items()))
        check(f"{what}: experts", os.path.isdir(f"{mnt}/experts"))
        check(f"{what}: the mount names the commit", any(f"/resolve/{commit}/" in line for line in open("/proc/mounts") if mnt in line))
        ctl("down", mnt)
    return good


print("-- models in all forms")
serves("a GGUF file", "org/One-GGUF", {"One.gguf": whole})
serves("a quantisation", "org/Many-GGUF:Q4_K_M", {"Many-Q4_K_M.gguf": whole})
serves("a file in a folder", "org/Many-GGUF/a b/Many Q4_K+.gguf", {"Many Q4_K+.gguf": changed})
serves("a split one", "org/Many-GGUF:BF16", parts)
serves("safetensors by an index", "org/Plain", tensors)
serves("one safetensors file", "org/Single", single)
serves("an address of a page", "https://huggingface.co/org/One-GGUF/blob/main/One.gguf", {"One.gguf": whole})
for revision, commit in (("main", A), ("refs/pr/1", B), ("feature/x", B), (B, B)):
    serves(revision, f"org/One-GGUF@{revision}", {"One.gguf": whole if commit == A else changed}, commit)
    serves(f"{revision}, a file", f"org/One-GGUF@{revision}/One.gguf", {"One.gguf": whole if commit == A else changed}, commit)
check("without a token none is sent", not any("Authorization" in headers for _, headers in hub.taken() + hub.blobs.taken()))
serves("a private model", "org/Secret", {"One.gguf": whole}, HF_TOKEN=hub.secret)
hub.members.add("org/Gated")
serves("a gated model", "org/Gated", {"One.gguf": whole}, HF_TOKEN=hub.secret)
hub.members.clear()
serves("config.json behind a relative redirect", "org/Single", single, HF_TOKEN=hub.secret)
check("the token is sent to the hub", all(headers.get("Authorization") == f"Bearer {hub.secret}" for _, headers in hub.taken()))
taken = hub.blobs.taken()
check("and never to the host of the blobs", taken and not any("Authorization" in headers or hub.secret in path for path, headers in taken))

print("-- the commit is pinned, links expire")
mnt = scratch("mnt")
result = ctl("up", "--remote", *OPTIONS, "org/One-GGUF", mnt, HF_TOKEN=hub.secret, XDG_CACHE_HOME=scratch("empty"))
check("mounted", result.returncode == 0, result)
limit = int(next(line for line in open(f"{mnt}/.expertfs/config") if line.startswith("local_limit_bytes: ")).split()[1])
check("a copy is kept in half of what is free", limit > 1 << 28 and os.listdir(scratch("empty/expertfs")), limit)
hub.references["org/One-GGUF"]["main"] = B
hub.blobs.signature = 2
hub.taken()
check("main moves, the link expires: the bytes are those of the commit", open(f"{mnt}/One.gguf", "rb").read() == whole)
again = hub.taken()
check("resolved anew by the commit, once a range at most", 0 < len(again) < 33 and all(f"/resolve/{A}/" in path for path, _ in again), again)
check("the token again to the hub alone", all("Authorization" in headers for _, headers in again) and
      not any("Authorization" in headers for _, headers in hub.blobs.taken()))
fetched = int(next(line for line in open(f"{mnt}/.expertfs/stat") if line.startswith("fetched_bytes: ")).split()[1])
state = json.loads(ctl("status", "--json", mnt).stdout)
check("stat and status count the fetched bytes", fetched == state["fetched_bytes"] and len(whole) <= fetched <= len(whole) * 1.2 + (1 << 20), (fetched, len(whole)))
words = ctl("status", mnt).stdout
check("status in words", re.search(r"^fetched   \S+ \S+ of \S+ \S+ \(\d+\.\d %\)$", words, re.M), words)
result = ctl("up", "--remote", *OPTIONS, "org/One-GGUF", mnt)
check("the mount point has the old commit", result.returncode == 1 and f"is a mount of {hub.url}" in result.stderr and "hint: " in result.stderr, result)
result = ctl("warmup", "--local", mnt)  # a slow disk may not have written all that was read
check("the copy gets the rest", result.returncode == 0, result)
ctl("down", mnt)
hub.references["org/One-GGUF"]["main"] = A
result = ctl("up", "--remote", *OPTIONS, "org/One-GGUF", mnt)
again = open(f"{mnt}/One.gguf", "rb").read()
fetched = int(next(line for line in open(f"{mnt}/.expertfs/stat") if line.startswith("fetched_bytes: ")).split()[1])
check("the copy of an earlier mount has the bytes", result.returncode == 0 and again == whole and fetched < 1 << 20, (result, fetched))
ctl("down", mnt)
hub.lie = after(1, lambda handler: hub.references["org/One-GGUF"].update(main=B))
serves("main moves while it is opened", "org/One-GGUF", {"One.gguf": whole})
hub.lie = lambda handler: False
hub.references["org/One-GGUF"]["main"] = A
result = ctl("up", "--remote", *OPTIONS, "org/One-GGUF")
check("without MNT: ORG--NAME", result.returncode == 0 and os.path.ismount(scratch("data/expertfs/org--One-GGUF")), result)
result = ctl("up", "--remote", "org/One-GGUF")
check("up again: the same mount", result.returncode == 0 and "org--One-GGUF on " in result.stdout and
      sum(hub.url in line for line in open("/proc/mounts")) == 1, result)
result = ctl("up", "org/One-GGUF")
check("also without --remote", result.returncode == 0 and "org--One-GGUF on " in result.stdout, result)
check("down by its name", ctl("down", "org/One-GGUF").returncode == 0 and not os.path.ismount(scratch("data/expertfs/org--One-GGUF")))
hub.lie = times(2, status(429, ("Retry-After", "1")))
serves("a hub that asks to wait a second", "org/One-GGUF", {"One.gguf": whole})
hub.lie = times(2, status(503))
serves("a hub that is busy", "org/One-GGUF", {"One.gguf": whole})

print("-- refused, in one line with the way out")
hub.lie = lambda handler: False
NONE = "check the name; a private one needs HF_TOKEN"
for what, given, environment, text, hint in (
        ("no such model", "org/None", {}, "org/None: no such model, or a private one", NONE),
        ("no such model, with a token", "org/None", {"HF_TOKEN": hub.secret}, "org/None: no such model", NONE),
        ("a private one without a token", "org/Secret", {}, "a private one", NONE),
        ("a wrong token", "org/One-GGUF", {"HF_TOKEN": "hf_wrong"}, "org/One-GGUF: the server refuses the token (401)", "HF_TOKEN"),
        ("no such revision", "org/One-GGUF@v9", {}, "no such revision of the model", "hint: "),
        ("no such revision with slashes", "org/One-GGUF@a/b/c", {}, "no such revision of the model", "hint: "),
        ("no such quantisation", "org/Many-GGUF:Q5_K", {}, "no such file of the model", "it has BF16/cut-00001-of-00002.gguf, "),
        ("no such file", "org/Many-GGUF/None.gguf", {}, "no such file of the model", "it has BF16/"),
        ("two files", "org/Many-GGUF:F16", {}, "which file? there are Many-F16.gguf, mmproj-F16.gguf", "ORG/NAME/FILE"),
        ("several models", "org/Many-GGUF", {}, "which file? there are BF16/cut-00001-of-00002.gguf, Many-F16.gguf, ", ":QUANT"),
        ("no weights", "org/Text", {}, "neither GGUF nor safetensors", ""),
        ("a path", scratch("x"), {}, "no name of a model on the Hub", "ORG/NAME"),
        ("nothing listens", "org/One-GGUF", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "connect", "https_proxy"),
        ("another machine by http://", "org/One-GGUF", {"HF_ENDPOINT": "http://192.0.2.1"}, "http:// shows", "https://")):
    result = ctl("up", "--remote", given, **environment)
    check(what, one_line(result, text, hint), result.stderr)
for what, environment in (("without a token", {}), ("with one of another user", {"HF_TOKEN": hub.secret})):
    result = ctl("up", "--remote", "org/Gated", **environment)
    lines = result.stderr.splitlines()
    check(f"a gated model {what}", result.returncode == 1 and len(lines) == 4 and "One.gguf: a gated model" in lines[2] and "accept the terms" in lines[3], result.stderr)
result = ctl("up", "--remote", "--reclaim", "org/One-GGUF")
check("--reclaim", result.returncode == 2 and "nothing is packed" in result.stderr, result.stderr)

print("-- lists that lie")


def listed(*paths, sha=A, **more):
    return json.dumps({"sha": sha, "siblings": [{"rfilename": path} for path in paths], **more}).encode()


elsewhere = http_server.Server({})
OUT, LIST = "a name that leads out of the model", "sends no list of files with a commit"
for what, body, text in (
        ("..", listed("One.gguf", "../../etc/passwd"), OUT), (".. within", listed("a/../One.gguf"), OUT), (". alone", listed("./One.gguf"), OUT),
        ("an absolute name", listed("/One.gguf"), OUT), ("an empty part", listed("a//One.gguf"), OUT), ("a slash at the end", listed("One.gguf/"), OUT),
        ("an empty name", listed(""), OUT), ("a backslash", listed("..\\One.gguf"), OUT), ("a line break", listed("One\n.gguf"), OUT),
        ("a long name", listed("x" * 2000 + ".gguf"), OUT), ("a number", json.dumps({"sha": A, "siblings": [{"rfilename": 1}]}).encode(), OUT),
        ("a name twice", listed("One.gguf", "x", "One.gguf"), "has One.gguf twice"), ("a key twice", b'{"sha": "x", "sha": "y", "siblings": []}', LIST),
        ("a size of 30 digits", listed("One.gguf")[:-2] + b', {"rfilename": "b", "size": ' + b"9" * 30 + b"}]}", LIST),
        ("a commit that leads out", listed("One.gguf", sha="../../../x"), LIST), ("a branch for a commit", listed("One.gguf", sha="main"), LIST),
        ("no commit", b'{"siblings": []}', LIST), ("no files", json.dumps({"sha": A}).encode(), LIST), ("an object of files", json.dumps({"sha": A, "siblings": {}}).encode(), LIST),
        ("a page of HTML", b"<!DOCTYPE html>", LIST), ("nothing", b"", LIST), ("not UTF-8", b'{"sha": "\xff"}', LIST), ("deep", b"[" * 100000, LIST),
        ("100,001 files", listed(*map(str, range(100001))), LIST), ("an empty list", listed(), "neither GGUF nor safetensors")):
    hub.lie = times(1, status(200, body=body))
    result = ctl("up", "--remote", "org/One-GGUF")
    check(what, result.returncode == 1 and text in result.stderr.splitlines()[0] and len(result.stderr.splitlines()) <= 2 and len(result.stderr) < 800, result.stderr[:1000])


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * (1 << 20))


for what, lie, text in (
        ("a list without end", endless, "(200) is not the list"), ("a range", status(206, ("Content-Range", "bytes 0-1/2"), ("ETag", '"x"'), body=b"{}"), "(206) is not the list"),
        ("a compressed list", status(200, ("Content-Encoding", "gzip"), body=b"{}"), "(200) is not the list"),
        ("a wait of an hour", status(429, ("Retry-After", "3600")), "asks to wait 3600 s"), ("404", status(404), "no such file (404)"),
        ("a circle", lambda handler: status(307, ("Location", handler.path))(handler), "more than 8 redirects"),
        ("a code without end", status(403, ("X-Error-Code", "GatedRepo" * 1000)), "refuses access (403)")):
    hub.lie = lie
    result = ctl("up", "--remote", "org/One-GGUF", EXPERTFS_HTTP_TIMEOUT="5")
    check(what, result.returncode == 1 and text in result.stderr.splitlines()[0] and len(result.stderr.splitlines()) <= 2, result.stderr)
hub.lie = status(307, ("Location", elsewhere.url + "/api/models/org/One-GGUF/revision/main"))
result = ctl("up", "--remote", "org/One-GGUF", HF_TOKEN=hub.secret)
taken = elsewhere.taken()
check("a list that another host has: without the token", taken and not any("Authorization" in headers for _, headers in taken) and result.returncode == 1, (taken, result.stderr))
hub.lie = after(1, lambda handler: "/resolve/" in handler.path and status(302, ("Location", elsewhere.url + "/x.gguf?t=" + A))(handler))
result = ctl("up", "--remote", "org/One-GGUF", HF_TOKEN=hub.secret)
taken = elsewhere.taken()
check("a file that another host has: without the token", taken and not any("Authorization" in headers for _, headers in taken) and result.returncode == 1, (taken, result.stderr))
elsewhere.close()
hub.lie = times(1, status(200, body=listed("One.gguf", "Two.gguf")))
result = ctl("up", "--remote", "org/One-GGUF:Two.gguf")
check("a file of the list that is not there", result.returncode == 1 and "Two.gguf: the server has no such file (404)" in result.stderr, result.stderr)
hub.lie = lambda handler: False

print("-- without --remote")
hub.taken()
result = ctl("up", "org/One-GGUF")
check("not at a terminal: as before, with the way", one_line(result, "nor in the cache", "`expertctl up --remote`") and not hub.taken(), result.stderr)


def at_terminal(answer):
    """expertctl up at a terminal, where the user answers."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(expertctl, ["expertctl", "up", *OPTIONS, "org/One-GGUF", mnt], {**os.environ, "HF_ENDPOINT": hub.url})
    said = b""
    try:
        while b"Type yes: " not in said:
            said += os.read(terminal, 1000)
        os.write(terminal, answer)
        while True:
            said += os.read(terminal, 1000)
    except OSError:
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()


result = at_terminal(b"no\n")
check("no", result[0] == 1 and "nor in the cache" in result[1] and not os.path.ismount(mnt) and not hub.taken(), result)
result = at_terminal(b"yes\n")
check("yes", result[0] == 0 and f"Serve it from {hub.url}" in result[1] and os.path.ismount(mnt), result)
check("its bytes", open(f"{mnt}/One.gguf", "rb").read() == whole)
ctl("down", mnt)

print("-- a program, the library, and programs that take no address")
address = f"{hub.url}/org/One-GGUF/resolve/{A}/One.gguf"
result = subprocess.run([expertctl, "up", "--remote", "-o", f"local={scratch('other')},local-size=1G", *OPTIONS, "org/One-GGUF", "--", "cat", "{gguf}"], capture_output=True,
                        env={**os.environ, "HF_ENDPOINT": hub.url})
check("a program reads the file", result.returncode == 0 and result.stdout == whole and f"cat runs on a mount of {address}" in result.stderr.decode(), result.stderr)
check("a copy that the user names is the only one", os.listdir(scratch("other")) and b"half of what" not in result.stderr, result.stderr)
os.environ["HF_ENDPOINT"] = hub.url
try:
    client = library_client.Client(address, originals={})
    check("a client of the library opens an address", client.ask(0, [1], look=False) == [])
    client.close()
except OSError as error:
    check("a client of the library opens an address", False, error)
error = error_of(lambda: library_client.Client(hub.url + "/org/None/resolve/main/x.gguf", originals={}))
check("and gets the error of one that is not there", error == "ENOENT", error)
copy = run(program("mkexpertfs"), "--copy", address, scratch("copy.efs"))
check("--copy of a GGUF file", copy.returncode == 1 and "One.gguf: not a store\nhint: download it; then mkexpertfs packs it" in copy.stderr, copy.stderr)
copy = run(program("mkexpertfs"), address, scratch("copy.efs"))
check("packing an address", copy.returncode == 1 and "SRC is an address: only files are packed\nhint: " in copy.stderr, copy.stderr)
copy = run(program("mkexpertfs"), "--copy", address + "?secret", "http://host/x")
check("no secret is shown", copy.returncode == 1 and "?secret" not in copy.stderr, copy.stderr)
result = ctl("rm", "--yes", address)
check("rm of an address", one_line(result, "a store on a server is not deleted from here"), result.stderr)
hub.close()

print("-- certificates")
key, certificate = scratch("key.pem"), scratch("certificate.pem")
if shutil.which("openssl") and run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "3650",
                                   "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost").returncode == 0:
    hub = Hub(MODELS, REFERENCES, tls=(certificate, key))
    result = ctl("up", "--remote", "org/One-GGUF")
    check("one that nobody trusts", one_line(result, "org/One-GGUF: the certificate is not trusted", "CURL_CA_BUNDLE"), result.stderr)
    result = ctl("up", "--remote", "org/Single", CURL_CA_BUNDLE=certificate)
    check("blobs by http:// behind https://", result.returncode == 1 and "not https://" in result.stderr, result.stderr)
    hub.close()
else:
    note("left out: needs openssl")
done()
