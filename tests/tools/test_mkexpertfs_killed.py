# SPDX-License-Identifier: Apache-2.0
"""mkexpertfs --reclaim is killed EXPERTFS_KILLS times, and again while it is resumed or undone: it gives the store, or the
source, byte for byte. Kills and power loss at each call, without --reclaim, too: fault/test_power, test_pack_fallbacks,
test_reclaim."""
import filecmp
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from e2e import *

KILLS = int(os.environ.get("EXPERTFS_KILLS", "20"))
SEED = int(os.environ.get("SEED", "1"))
os.environ.update(NO_STATE)  # the first run that keeps the state of settled files makes more calls
note(f"SEED={SEED} EXPERTFS_KILLS={KILLS} repeats these kills")
model, other = make_model("model"), make_model("other", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "4", "-l", "2",
                                               "--vocab", "400")
folder = scratch("out")
os.mkdir(folder)
out, work = f"{folder}/model.efs", scratch("work")
with open(make_store(model), "rb") as file:
    packed = file.read()
counts = {}
# Messages of --resume or --undo, with exit status 1, when the kill came before the start or after the end.
OVER = ("nothing is left to be done", "was interrupted before anything was done")
COMPLETE = "is complete: --resume tidies up"  # message of --undo when the store has its name


def refused_complete(said):
    """--undo was refused for a valid reason, and the suggested way out is not the refused one."""
    return COMPLETE in said and store_there() == "new" and "--undo" not in said and "--resume" in said


def killed(nth, *arguments):
    """Whether it was killed, before its end; a run with fewer calls must succeed."""
    process = SignalledPacker(nth, *arguments)
    status, said = process.end()
    if status != -signal.SIGKILL:
        check("what is not killed makes fewer calls, and succeeds", process.calls < nth and
              (status == 0 or any(over in said for over in OVER) or refused_complete(said)), (nth, process.calls, status, said))
    return status == -signal.SIGKILL


def store_there():
    """The state of the target: "new", "nothing", or "neither"."""
    if not os.path.exists(out):
        return "nothing"
    with open(out, "rb") as file:
        return "new" if file.read() == packed else "neither"


def same_source():
    found = filecmp.dircmp(model, work)
    names = files_below(model)
    return names == files_below(work) and not found.funny_files and \
        all(filecmp.cmp(f"{model}/{name}", f"{work}/{name}", shallow=False) for name in names)


def reclaimed(generator, end):
    """Packs with --reclaim, killed once, and again while it is resumed or undone."""
    shutil.rmtree(folder)
    os.mkdir(folder)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(model, work)
    way, nth, died = [], generator.randint(1, calls), 0
    arguments = ("--reclaim", "--yes", work, out)
    while killed(nth, *arguments):
        died += 1
        if not os.path.exists(out + ".reclaim") or len(way) == 6:
            break
        way.append(generator.choice(("--resume", "--undo")))
        nth, arguments = generator.randint(1, calls), (way[-1], out)
    if os.path.exists(out + ".reclaim"):
        result = run(program("mkexpertfs"), "-q", end, out)
        if refused_complete(result.stderr):
            result = run(program("mkexpertfs"), "-q", "--resume", out)
        if result.returncode and not any(over in result.stderr for over in OVER):
            return False, (way, end, result.stderr)
    now = store_there()
    whole = now == "new" and not os.path.exists(work) or now == "nothing" and same_source()
    left = set(os.listdir(folder)) - {"model.efs"}
    if any(re.fullmatch(r"\.expertfs-\d+-\d+\.tmp", name) for name in left):  # the next packer there removes it
        run(program("mkexpertfs"), "-q", "--force", other, out)
    return died and whole and set(os.listdir(folder)) <= {"model.efs"}, (way, end, now, os.path.exists(work) and files_below(work),
                                                                left, os.listdir(folder))


shutil.copytree(model, work)
calls = count_write_calls("--reclaim", "--yes", work, out)
note(f"calls that change files: {calls}")
for number in range(KILLS):
    end = ("--resume", "--undo")[number % 2]
    good, detail = reclaimed(random.Random(SEED + number), end)
    if not good:
        check(f"{end}, kill {number}: SEED={SEED} EXPERTFS_KILLS={number + 1}", False, detail)
    counts[end] = counts.get(end, 0) + good
check(f"{KILLS} times killed in the place of the source: {counts}", sum(counts.values()) == KILLS)
done()
