# SPDX-License-Identifier: Apache-2.0
"""mkexpertfs --force on a store in a pool: at each moment all of the old or all of the new store has the name, also after a kill
before each write and deletion; `rm --unfinished` removes what is left. librados is fake_rados.c."""
from e2e import *

need_fuse()
(model, store), (other_model, other) = shared(MANY), shared(SMALL)
root = scratch("rados")
pool = fake_rados(root)
ADDRESS, HEAD, PART = "rados:pool/model.efs", "model.efs", "model.efs.part"
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
HOLDING, GO = os.path.join(root, "holding"), os.path.join(root, "go")
COPY = ("-q", "--force", "--copy", other, ADDRESS)


def pack(*words, **environment):
    return run(program("mkexpertfs"), *words, env={**os.environ, **environment})


def head():
    return json.load(open(os.path.join(pool, HEAD)))


def objects(store_bytes=None):
    """Of the pool; with store_bytes those that there are if nothing but the store under the name is there."""
    if store_bytes is None:
        return sorted(name for name in os.listdir(pool) if "~" not in name)
    return sorted([HEAD, *(f"{head()['id']}.{i:016x}" for i in range((store_bytes + (4 << 20) - 1) // (4 << 20)))])


def holds(path):
    """Whether all of this store has the name, and nothing else is in the pool."""
    back = scratch("back.efs")
    result = pack("-q", "-f", "--copy", ADDRESS, back)
    return result.returncode == 0 and open(back, "rb").read() == open(path, "rb").read() and objects() == objects(os.path.getsize(path))


def has_one_store():
    """Whether all of the old or all of the new store has the name."""
    return ctl("verify", ADDRESS).returncode == 0


def reset():
    """The old store has the name, and there is nothing else."""
    for name in os.listdir(pool):
        os.unlink(os.path.join(pool, name))
    return pack("-q", "--copy", store, ADDRESS).returncode == 0


def hold(fault):
    """A copy that waits before this write, for GO."""
    faults(f"held {fault}")
    copying = subprocess.Popen([program("mkexpertfs"), *COPY], stderr=subprocess.PIPE, text=True)
    check("a copy is about to write", wait_until(lambda: os.path.exists(HOLDING) or copying.poll() is not None) and copying.poll() is None)
    return copying


def release(copying):
    open(GO, "w").close()
    said = copying.communicate(timeout=PATIENCE)[1]
    os.unlink(GO)
    os.unlink(HOLDING)
    faults()
    return subprocess.CompletedProcess([], copying.returncode, "", said)


print("-- replaced")
check("a store", reset() and holds(store))
check("not without --force", one_line(pack("--copy", other, ADDRESS), "exists") and holds(store))
old_id = head()["id"]
mount = Mount(ADDRESS, OPTIONS)
result = pack(*COPY)
check("--copy --force", result.returncode == 0 and holds(other) and head()["id"] != old_id, result.stderr)
check("a mount of the old store has its bytes or errors", reading_errors(mount, contents(model)) <= {"EIO"})
mount.unmount()
mount = Mount(ADDRESS, OPTIONS)
check("the next one has the new store", reading_errors(mount, contents(other_model)) == set())
mount.unmount()
result = pack("-q", "-f", model, ADDRESS, TMPDIR=SCRATCH)
check("mkexpertfs --force MODEL", result.returncode == 0 and holds(store), result.stderr)
check("where there is none", ctl("rm", "-y", ADDRESS).returncode == 0 and pack(*COPY).returncode == 0 and holds(other))

print("-- until the last moment the old store has the name")
reset()
copying = hold(HEAD)
check("all of it", has_one_store() and head()["bytes"] == os.path.getsize(store))
check("a second copy is refused", one_line(pack(*COPY), "runs or was killed"))
check("its deletion, too", one_line(ctl("rm", "-y", ADDRESS), "runs or was killed"))
result = release(copying)
check("then the new one", result.returncode == 0 and holds(other), result.stderr)

print("-- killed before each write and deletion")
for number in range(1, 1000):
    reset()
    result = pack(*COPY, FAKE_RADOS_KILL=str(number))
    if result.returncode == 0:
        break
    check(f"{number}: one of both has the name", result.returncode == -signal.SIGKILL and has_one_store(), result)
    new = head()["bytes"] == os.path.getsize(other)
    if os.path.exists(os.path.join(pool, PART)):
        check(f"{number}: a copy is refused", one_line(pack(*COPY), "runs or was killed"))
        check(f"{number}: rm --unfinished", ctl("rm", "-y", "--unfinished", ADDRESS).returncode == 0)
    check(f"{number}: nothing is left", holds(other if new else store), objects())
count = len(objects(os.path.getsize(store))) + len(objects())  # the mark, and its deletion, in place of the deletion of a head
check("at each of them", number == count + 2 and holds(other), (number, count))

print("-- what fails leaves the old store")
for fault, text in ((f"full {0:016x}", "No space left on device"), (f"full {HEAD}", "No space left on device"), (f"denied {HEAD}", "the user may not")):
    reset()
    faults(fault)
    result = pack(*COPY)
    faults()
    check(fault, one_line(result, text) and holds(store), result.stderr)
faults(f"lost {HEAD}")
check("the answer for the head is lost", one_line(pack(*COPY), "no answer in time") and has_one_store())
faults()
check("rm --unfinished deletes the old objects", ctl("rm", "-y", "--unfinished", ADDRESS).returncode == 0 and holds(other), objects())
reset()
faults(f"kept {head()['id']}.{0:016x}")
result = pack(*COPY)
faults()
check("the old objects stay", one_line(result, "replaced, but the store before it was not deleted: no answer in time") and has_one_store(), result.stderr)
check("rm --unfinished deletes them", ctl("rm", "-y", "--unfinished", ADDRESS).returncode == 0 and holds(other), objects())

print("-- what another program changes meanwhile is not replaced")
reset()
copying = hold(HEAD)
os.rename(os.path.join(pool, PART), scratch("mark"))
check("another copy", pack("-q", "-f", "--copy", store, ADDRESS).returncode == 0)
os.rename(scratch("mark"), os.path.join(pool, PART))
result = release(copying)
check("is kept", one_line(result, "was written by another copy meanwhile", False) and holds(store), (result, objects()))
reset()
copying = hold(f"{0:016x}")
check("what is unfinished is deleted while it is copied", ctl("rm", "-y", "--unfinished", ADDRESS).returncode == 0)
result = release(copying)
check("the old store stays", one_line(result, "model.efs.part was deleted meanwhile") and holds(store), (result, objects()))
for text, words in ((b"notes", "not a store"), (json.dumps({**head(), "version": 2}).encode(), "a later expertfs wrote it")):
    with open(os.path.join(pool, HEAD), "wb") as file:
        file.write(text)
    for arguments in (COPY, ("-f", model, ADDRESS)):
        check(f"{words}: refused", one_line(pack(*arguments, TMPDIR=SCRATCH), words) and open(os.path.join(pool, HEAD), "rb").read() == text)
done()
