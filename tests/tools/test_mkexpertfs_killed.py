# SPDX-License-Identifier: Apache-2.0
"""mkexpertfs is killed, EXPERTFS_KILLS times, at any moment: in the place of a store the old one stands whole, or the new
one, or nothing where nothing was; what a killed one leaves goes with the next. Packing in the place of its source goes
on, or back, from wherever it was killed, often several times, and gives the store, or the source, byte for byte."""
import filecmp
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from e2e import *

KILLS = int(os.environ.get("EXPERTFS_KILLS", "20"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
note(f"SEED={SEED} EXPERTFS_KILLS={KILLS} repeats these kills, as far as a clock can")
model, other = make_model("model"), make_model("other", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "4", "-l", "2",
                                               "--vocab", "400")
folder = scratch("out")
os.mkdir(folder)
out, work = f"{folder}/model.efs", scratch("work")
digests = {}
for name, source in (("new", model), ("old", other)):
    with open(make_store(source), "rb") as file:
        digests[file.read()] = name
old = other + ".efs"
counts = {}
# What going on or back says, and exits 1, when the kill came before the beginning or behind the end.
OVER = ("nothing is left to be done", "was interrupted before anything was done")


def pack(*arguments):
    return subprocess.Popen([program("mkexpertfs"), "-q", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed(process, generator, seconds):
    """Whether it was, before its end."""
    time.sleep(generator.uniform(0, seconds))
    alive = process.poll() is None
    process.kill()
    said = process.communicate()[0].decode()
    if not alive and process.returncode and not any(over in said for over in OVER):
        check("what was not killed in time succeeds", False, said)
    return alive


def store_there():
    """What stands there: "old", "new", "nothing", or what is wrong."""
    if not os.path.exists(out):
        return "nothing"
    with open(out, "rb") as file:
        return digests.get(file.read(), "neither")


def same_source():
    found = filecmp.dircmp(model, work)
    names = files_below(model)
    return names == files_below(work) and not found.funny_files and \
        all(filecmp.cmp(f"{model}/{name}", f"{work}/{name}", shallow=False) for name in names)


def plain(generator, options):
    """A new store, in the place of an old one or of nothing."""
    before = generator.choice(("old", "nothing"))
    shutil.rmtree(folder)
    os.mkdir(folder)
    if before == "old":
        shutil.copy(old, out)
    died = killed(pack("--force", *options, model, out), generator, seconds)
    now = store_there()
    good = now in (before, "new") if died else now == "new"
    left = os.listdir(folder)
    again = run(program("mkexpertfs"), "-q", "--force", model, out)
    return good and again.returncode == 0 and store_there() == "new" and os.listdir(folder) == ["model.efs"], \
        (before, died, now, left, again.stderr, os.listdir(folder))


def reclaimed(generator, end):
    """In the place of its source, killed there, and again on the way on or back."""
    shutil.rmtree(folder)
    os.mkdir(folder)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(model, work)
    way, process = [], pack("--reclaim", "--yes", work, out)
    while killed(process, generator, seconds) and os.path.exists(out + ".reclaim") and len(way) < 6:
        way.append(generator.choice(("--resume", "--undo")))
        process = pack(way[-1], out)
    if os.path.exists(out + ".reclaim"):
        result = run(program("mkexpertfs"), "-q", end, out)
        if result.returncode and not any(over in result.stderr for over in OVER):
            return False, (way, end, result.stderr)
    now = store_there()
    whole = now == "new" and not os.path.exists(work) or now == "nothing" and same_source()
    return whole and set(os.listdir(folder)) <= {"model.efs"}, (way, end, now, os.path.exists(work) and files_below(work),
                                                                os.listdir(folder))


began = time.monotonic()
run(program("mkexpertfs"), "-q", "--force", model, out)
seconds = 1.2 * (time.monotonic() - began)
for number in range(KILLS):
    generator = random.Random(SEED + number)
    what = ("plain", "verify", "resume", "undo")[number % 4]
    if what in ("resume", "undo"):
        good, detail = reclaimed(generator, "--" + what)
    else:
        good, detail = plain(generator, ("--verify",) if what == "verify" else ())
    counts[what] = counts.get(what, 0) + 1
    if not good:
        check(f"{what}, kill {number}: SEED={SEED} EXPERTFS_KILLS={number + 1}", False, detail)
check(f"{KILLS} kills: {counts}", sum(counts.values()) == KILLS)
done()
