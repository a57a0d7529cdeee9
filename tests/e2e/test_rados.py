# SPDX-License-Identifier: Apache-2.0
"""A store in a pool of Ceph: copied there and back, mounted, verified, unpacked, deleted, byte for byte; objects that are
missing, short, foreign, late or silent; full pools; copies that are killed. librados is fake_rados.c; tests/long has the real one."""
from e2e import *

need_fuse()
model, store = shared(NARROW)
data, source = open(store, "rb").read(), contents(model)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
root, object_bytes = scratch("rados"), 4 << 20
pool = fake_rados(root)
ADDRESS = "rados:pool/models/model.efs"
HEAD = "models%model.efs"


def pack(*words, **environment):
    return run(program("mkexpertfs"), *words, env={**os.environ, **environment})


def objects():
    return sorted(os.listdir(pool))


def wrong(folder):
    return [name for name, held in source.items() if open(f"{folder}/{name}", "rb").read() != held]


def failures(mount):
    return reading_errors(mount, source)


print("-- a copy to the pool")
result = pack("--copy", store, ADDRESS)
check("mkexpertfs --copy", result.returncode == 0 and f"{ADDRESS}: copied" in result.stdout, result)
head = json.load(open(os.path.join(pool, HEAD)))
check("the head says what there is", head["bytes"] == len(data) and head["object_bytes"] == object_bytes and head["version"] == 1, head)
names = [f"{head['id']}.{i:016x}" for i in range((len(data) + object_bytes - 1) // object_bytes)]
check("the objects have the store's bytes", objects() == sorted([HEAD, *names]) and
      b"".join(open(os.path.join(pool, name), "rb").read() for name in names) == data, objects())
check("no second one of this name", one_line(pack("--copy", store, ADDRESS), "exists"))
for words in (("info",), ("verify",)):
    result = ctl(*words, ADDRESS)
    check(f"expertctl {words[0]}", result.returncode == 0, result.stderr)
result = ctl("unpack", ADDRESS, scratch("unpacked"))
check("expertctl unpack", result.returncode == 0 and wrong(scratch("unpacked")) == [], result.stderr)
result = pack("--copy", "--json", ADDRESS, scratch("back.efs"))
check("and back", result.returncode == 0 and json.loads(result.stdout) == {"store_bytes": len(data)} and
      open(scratch("back.efs"), "rb").read() == data, result)
check("over no file without --force", one_line(pack("--copy", ADDRESS, scratch("back.efs")), "exists") and
      pack("-q", "-f", "--copy", ADDRESS, scratch("back.efs")).returncode == 0)

print("-- packed into the pool")
temporary = scratch("temporary")
os.mkdir(temporary)
before = objects()
result = pack("--json", model, "rados:pool/packed", TMPDIR=temporary)
check("mkexpertfs SRC rados:POOL/NAME", result.returncode == 0 and json.loads(result.stdout)["store"] == "rados:pool/packed", result)
packed = json.load(open(os.path.join(pool, "packed")))
check("the same bytes as in a file", b"".join(open(os.path.join(pool, f"{packed['id']}.{i:016x}"), "rb").read() for i in range(len(names))) == data)
check("nothing is left in TMPDIR", os.listdir(temporary) == [])
check("no second one of this name", one_line(pack(model, "rados:pool/packed"), "exists"))
check("rm", ctl("rm", "-y", "rados:pool/packed").returncode == 0 and objects() == before, objects())
for words, text in (((model, "rados:none/x"), "no such pool"), ((model, "https://localhost/x"), "only rados:POOL/NAME can be written"),
                    ((scratch("none"), "rados:pool/x"), "No such file")):
    result = pack(*words, TMPDIR=temporary)
    check(f"refused: {text}", result.returncode == 1 and text in result.stderr and objects() == before, result.stderr)
check("usage: --reclaim", pack("--reclaim", model, "rados:pool/x").returncode == 2)
check("TMPDIR that does not exist", one_line(pack(model, "rados:pool/x", TMPDIR=scratch("no folder")), "No such file") and objects() == before)
faults(f"full {0:016x}")
result = pack("-q", model, "rados:pool/x", TMPDIR=temporary)
faults()
check("a full pool: nothing is left", one_line(result, "No space left on device") and objects() == before and os.listdir(temporary) == [], result.stderr)

print("-- a mount")
mount = Mount(ADDRESS, OPTIONS)
check("all files, byte for byte", wrong(mount.path) == [])
check("the mount names the address", mount.config()["store"] == ADDRESS, mount.config()["store"])
mount.unmount()
os.mkdir(scratch("background"))
result = run(program("expertfs"), "-o", OPTIONS, ADDRESS, scratch("background"))
if check("in the background", result.returncode == 0 and is_mounted(scratch("background")), result.stderr):
    check("serves, too", wrong(scratch("background")) == [])
    for words in (("status", scratch("background")), ("ls",)):
        result = ctl(*words)
        check(f"expertctl {words[0]}", result.returncode == 0 and ADDRESS in result.stdout, (result.stdout, result.stderr))
    check("expertctl down", ctl("down", scratch("background")).returncode == 0)

print("-- expertctl up")
os.environ["XDG_DATA_HOME"] = scratch("data")
mnt = scratch("up")
result = ctl("up", "-o", OPTIONS, ADDRESS, mnt)
check("up", result.returncode == 0 and f"store: {ADDRESS}" in result.stdout and wrong(mnt) == [], result)
result = ctl("up", ADDRESS)
check("again: the mount that there is", result.returncode == 0 and f"model on {mnt}" in result.stdout, result)
check("status and down by the address", ctl("status", ADDRESS).returncode == 0 and ctl("down", ADDRESS).returncode == 0 and not is_mounted(mnt))
result = ctl("up", "-o", OPTIONS, ADDRESS, "--", "sh", "-c", 'sha256sum "$1"/*.safetensors', "sh", "{}")
sums = run("sh", "-c", 'sha256sum "$1"/*.safetensors', "sh", model).stdout
check("a program on a mount", result.returncode == 0 and [line.split()[0] for line in result.stdout.splitlines()] ==
      [line.split()[0] for line in sums.splitlines()], result)
result = ctl("up", ADDRESS)
check("a folder of its own", result.returncode == 0 and f"model on {scratch('data')}/expertfs/model" in result.stdout, result)
check("down by its name", ctl("down", "model").returncode == 0)
for address in ("rados:pool", "rados:pool/", "rados:pool/..", "rados:pool/.hidden"):
    check(f"up {address}", one_line(ctl("up", address), "no address of a file"))
result = ctl("up", "http://192.0.2.1/model.efs")
check("no name on the Hub", one_line(result, "http:// shows and trusts"), result.stderr)
check("up of nothing", one_line(ctl("up", "rados:pool/none"), "no such store"))

print("-- refused, with a reason and a way out")
for address, text in (("rados:pool/none", "no such store"), ("rados:none/model.efs", "no such pool"), ("rados:pool", "no address in Ceph"),
                      ("rados:/x", "no address in Ceph"), ("rados:pool/", "no address in Ceph"), (f"rados:pool/{'x' * 300}", "no address in Ceph")):
    result = ctl("info", address)
    check(address[:40], one_line(result, text), result.stderr)
check("another user without a key", one_line(ctl("info", ADDRESS, CEPH_ARGS="--cluster ceph --id stranger"), "the user may not"))
check("the same by its name", one_line(ctl("info", ADDRESS, CEPH_ARGS="-n client.stranger"), "the user may not"))
check("no configuration", one_line(ctl("info", ADDRESS, FAKE_RADOS=scratch("nowhere")), "no configuration of Ceph"))
check("no librados", one_line(ctl("info", ADDRESS, EXPERTFS_RADOS="/nonexistent"), "librados, which is not installed"))
faults("silent connect")
check("nothing answers", one_line(ctl("info", ADDRESS), "no answer in time"))
faults()
HEADS = [b"", b"x" * 5000, b"{}", b"\0" * 100, json.dumps({**head, "format": "other"}).encode(), json.dumps({**head, "bytes": -1}).encode(),
         json.dumps({**head, "bytes": 2**70}).encode(), json.dumps({**head, "object_bytes": 0}).encode(),
         json.dumps({**head, "object_bytes": 4097}).encode(), json.dumps({**head, "object_bytes": 1 << 40}).encode(),
         json.dumps({**head, "id": "../../../../etc/"}).encode(), json.dumps({**head, "id": head["id"].upper() + "0"}).encode(),
         json.dumps({**head, "content_hash": 5}).encode(), json.dumps(head).encode()[:-2],
         json.dumps(head).encode()[:-1] + b', "id": "0000000000000000"}']
for number, text in enumerate(HEADS):
    with open(os.path.join(pool, "bad"), "wb") as file:
        file.write(text)
    check(f"head {number} is none", one_line(ctl("info", "rados:pool/bad"), "not a store of expertfs"))
    check("rm leaves it", ctl("rm", "-y", "rados:pool/bad").returncode == 1 and os.path.exists(os.path.join(pool, "bad")))
with open(os.path.join(pool, "bad"), "w") as file:
    json.dump({**head, "version": 2}, file)
check("a later version", one_line(ctl("info", "rados:pool/bad"), "a later expertfs wrote it"))
for change, text in (({"bytes": len(data) - 4096}, "should have"), ({"bytes": len(data) + 1}, "should have"),
                     ({"id": "0" * 16}, "missing"), ({"object_bytes": 65536}, "should have")):
    with open(os.path.join(pool, "bad"), "w") as file:
        json.dump({**head, **change}, file)
    result = ctl("verify", "rados:pool/bad")
    check(f"a head that lies, {change}", result.returncode == 1, (result.stdout, result.stderr))
os.unlink(os.path.join(pool, "bad"))

print("-- objects with faults under a mount: EIO and one line, right bytes afterwards")
SMALL_OBJECTS = "rados:pool/small"  # reads then take several
small = [f"{'5' * 16}.{i:016x}" for i in range((len(data) + 65535) // 65536)]
for i, name in enumerate(small):
    with open(os.path.join(pool, name), "wb") as file:
        file.write(data[i * 65536:(i + 1) * 65536])
with open(os.path.join(pool, "small"), "w") as file:
    json.dump({**head, "id": "5" * 16, "object_bytes": 65536}, file)
for fault, text in (("missing", "missing"), ("short", "shorter than it should be"), ("eio", "Input/output error"), ("silent", "no answer in time")):
    mount = Mount(SMALL_OBJECTS, OPTIONS)
    faults(f"{fault} {small[5]}")
    check(f"{fault}: EIO", failures(mount) == {"EIO"})
    lines = [line for line in mount.control("log").splitlines() if f"object {small[5]}" in line]
    check(f"{fault}: said", lines and text in lines[0] and len(lines) <= 3, mount.control("log"))
    faults()
    check(f"{fault}: right bytes afterwards", failures(mount) == set())
    mount.unmount()
mount = Mount(SMALL_OBJECTS, OPTIONS)
faults(*(f"late {name}" for name in small))
check("late objects are waited for", failures(mount) == set())
faults()
mount.unmount()

for fault, text in (("missing", "missing"), ("short", "shorter than it should be"), ("eio", "Input/output error")):
    faults(f"{fault} {small[5]}")
    for words in (("verify",), ("unpack", scratch(f"unpacked-{fault}"))):
        result = ctl(words[0], SMALL_OBJECTS, *words[1:])
        check(f"{fault}: {words[0]} names the object", result.returncode == 1 and f"{SMALL_OBJECTS}: object {small[5]}: {text}" in result.stderr and
              len(result.stderr.splitlines()) <= 2, result.stderr)
    faults()

print("-- ends while objects are silent")
mount = Mount(SMALL_OBJECTS, OPTIONS)
faults(*(f"silent {name}" for name in small))
reader = subprocess.Popen(["cat", mount / sorted(source)[-1]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(0.3)
reader.kill()
reader.wait()
mount.stop()
check("the daemon ends", mount.daemon.poll() is not None)
faults()

print("-- copies that fail leave nothing")
check("rm", ctl("rm", "-y", SMALL_OBJECTS).returncode == 0)
before = objects()
check("the other store stays", before == sorted([HEAD, *names]), before)
for fault, text, hint in ((f"full {names[-1][-16:]}", "No space left on device", True), ("full other.efs", "No space left on device", True)):
    faults(fault)
    result = pack("-q", "--copy", store, "rados:pool/other.efs")
    check(fault.split()[0] + " pool", one_line(result, text, hint), result.stderr)
    check("nothing is left", objects() == before, objects())
HOLDING, GO = os.path.join(root, "holding"), os.path.join(root, "go")


def held_copy():
    """A copy that is about to write its first object, and waits for GO."""
    faults(f"held {0:016x}")
    copying = subprocess.Popen([program("mkexpertfs"), "-q", "--copy", store, "rados:pool/other.efs"], stderr=subprocess.PIPE, text=True)
    check("a copy is about to write", wait_until(lambda: os.path.exists(HOLDING) or copying.poll() is not None))
    os.unlink(HOLDING)
    return copying


copying = held_copy()
copying.send_signal(signal.SIGINT)
wait_until(lambda: not re.search("^(ShdPnd|SigPnd):.*[1-9a-f]", open(f"/proc/{copying.pid}/status").read(), re.M))
open(GO, "w").close()
said = copying.communicate(timeout=PATIENCE)[1]
check("interrupted", copying.returncode == 130 and "nothing was left behind" in said and objects() == before, (copying.returncode, said, objects()))
os.unlink(GO)
copying = held_copy()
copying.kill()
copying.communicate()
faults()
check("killed: no store of that name", one_line(ctl("info", "rados:pool/other.efs"), "no such store"))
check("the name is taken", one_line(pack("--copy", store, "rados:pool/other.efs"), "was killed"))
check("rm does not guess", ctl("rm", "-y", "rados:pool/other.efs").returncode == 1)
result = ctl("rm", "-y", "--unfinished", "rados:pool/other.efs")
check("rm --unfinished deletes what is left", result.returncode == 0 and [name for name in objects() if "~" not in name] == before, (result, objects()))
check("nothing is unfinished any more", one_line(ctl("rm", "-y", "--unfinished", "rados:pool/other.efs"), "nothing is unfinished", False))
for name in objects():
    if "~" in name:
        os.unlink(os.path.join(pool, name))
with open(os.path.join(pool, HEAD + ".part"), "w") as file:
    json.dump({**head, "format": "expertfs-unfinished"}, file)
check("killed after the head: the store stays", ctl("rm", "-y", "--unfinished", ADDRESS).returncode == 0 and objects() == before and
      ctl("verify", ADDRESS).returncode == 0)

print("-- in a full pool stores are deleted, which frees space")
check("a copy", pack("-q", "--copy", store, "rados:pool/other.efs").returncode == 0)
faults("full other.efs.part", "full other.efs")
result = ctl("rm", "-y", "rados:pool/other.efs")
faults()
check("rm", result.returncode == 0 and objects() == before, (result, objects()))

print("-- what is complete is not deleted as unfinished")
check("no store has the name of a mark", one_line(pack("--copy", store, ADDRESS + ".part"), "marks what is unfinished"))
with open(os.path.join(pool, "a.part"), "w") as file:
    json.dump(head, file)  # a store, by another program
check("a store in the way of a copy", one_line(pack("--copy", store, "rados:pool/a"), "a.part is in the way"))
check("and of its deletion", one_line(ctl("rm", "-y", "--unfinished", "rados:pool/a"), "nothing is unfinished", False) and
      ctl("verify", "rados:pool/a.part").returncode == 0)
os.unlink(os.path.join(pool, "a.part"))
faults("lost other.efs")
check("the answer for the head is lost", one_line(pack("-q", "--copy", store, "rados:pool/other.efs"), "no answer in time"))
check("all of the store is there", ctl("verify", "rados:pool/other.efs").returncode == 0)
check("rm --unfinished keeps it", ctl("rm", "-y", "--unfinished", "rados:pool/other.efs").returncode == 0 and
      ctl("verify", "rados:pool/other.efs").returncode == 0)
faults(f"kept {len(names) - 1:016x}")
check("a deletion that fails", one_line(ctl("rm", "-y", "rados:pool/other.efs"), "no answer in time"))
faults()
check("is found", one_line(ctl("info", "rados:pool/other.efs"), "no such store") and
      ctl("rm", "-y", "--unfinished", "rados:pool/other.efs").returncode == 0 and objects() == before, objects())
for words, text in ((("--copy", store, scratch("x.efs")), "is an address"), (("--copy", ADDRESS, "rados:pool/y"), "is a file"),
                    (("--copy", store, "https://localhost/x.efs"), "cannot be written"),
                    (("--copy", scratch("none.efs"), "rados:pool/z"), "No such file"), (("--copy", model, "rados:pool/z"), "not a store")):
    result = pack(*words)
    check(f"refused: {words[-1]}", result.returncode == 1 and text in result.stderr, result.stderr)
check("usage: --copy and --verify", pack("--copy", "--verify", store, ADDRESS).returncode == 2)
check("usage: --unfinished and a file", ctl("rm", "--unfinished", store).returncode == 2)
check("rm asks", one_line(ctl("rm", ADDRESS), "--yes is needed", False))
result = ctl("rm", "-y", "--json", ADDRESS)
check("rm deletes all", result.returncode == 0 and json.loads(result.stdout)["removed"][0]["store_bytes"] == len(data) and objects() == [], (result, objects()))
done()
