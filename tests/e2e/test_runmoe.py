"""The example runtime: the same logits as llama.cpp on the same weights, whatever the budget, threads and batches; what
it cannot run is refused."""
import os
import re
import subprocess

import e2e
from e2e import *

CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients/runmoe.py")
RUNMOE = program("runmoe")
os.environ["EXPERTFS_STATE"] = scratch("state")
SHAPE = ("-F", "qwen3-moe", "-d", "256", "-i", "160", "-e", "16", "--experts-per-token", "3", "-l", "4", "--vocab", "700")


def runmoe(store, *options):
    return run(RUNMOE, store, *options)


def said(result):
    return dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)


missing = None
for dtype in ("bf16", "f32"):
    model, twin = (make_model(f"{dtype}{suffix}", *SHAPE, f"--dtype={dtype}", *more)
                   for suffix, more in (("", ()), ("-gguf", ("--format=gguf",))))
    store = make_store(model)
    ran = subprocess.run([os.environ.get("PYTHON", "/usr/bin/python3"), CLIENT, RUNMOE, store,
                          os.path.join(twin, "model.gguf")], capture_output=True, text=True)
    if ran.returncode == 77:
        missing = ran.stdout.strip()
    else:
        check(f"{dtype}: {ran.stdout.strip()}", ran.returncode == 0, ran.stderr[-2000:])

store = make_store(make_model("model", *SHAPE))
prompt = "5,9,130,77,2,2,641,300,12,12,12,699,0"
results, logits = set(), set()
for options in (("-t", 1), ("-t", 2, "--batch", 1), ("-t", 3, "--batch", 5), ("-t", 8, "--budget", "36M")):
    path = scratch("logits")
    ran = runmoe(store, "-p", prompt, "-n", 6, "--logits", path, *options)
    results.add(said(ran).get("tokens", ran.stderr))
    with open(path, "rb") as file:
        logits.add(file.read())
check("threads, batches and budget do not change a bit", len(results) == len(logits) == 1, results)
check("logits of every position: 13 of the prompt, 5 of 6 tokens that follow",
      all(len(one) == (13 + 5) * 700 * 4 for one in logits), [len(one) for one in logits])
check("six tokens are told", re.fullmatch(r"\d+( \d+){5}", next(iter(results))), results)

drawn = [said(runmoe(store, "-p", prompt, "-n", 12, "--temp", 1.5, "--seed", seed))["tokens"] for seed in (1, 1, 2)]
check("a seed gives the same tokens again, another seed others", drawn[0] == drawn[1] != drawn[2], drawn)
with open(scratch("prompt"), "w") as file:
    file.write(prompt.replace(",", "\n"))
check("a prompt from a file is the same", said(runmoe(store, "-p", "@" + scratch("prompt"), "-n", 6))["tokens"] in results)
counted = said(runmoe(store, "-p", prompt, "-n", 6))
check("the experts add up", int(counted["experts"]) == sum(int(counted[f"experts_{s}"]) for s in "fcm"), counted)

other = make_store(make_model("other", "--preset=tiny-mixtral"))
for what, status, text, ran in (
        ("another family", 1, "only qwen3_moe", runmoe(other)),
        ("no store", 1, "cannot open", runmoe(scratch("nothing"))),
        ("a token beyond the vocabulary", 1, "vocabulary has 700", runmoe(store, "-p", "3,700")),
        ("a prompt that is not numbers", 2, "--prompt", runmoe(store, "-p", "3,x")),
        ("a budget below the floor", 1, "floor", runmoe(store, "-b", "1M")),
        ("a file that cannot be written", 1, "No such file", runmoe(store, "--logits", scratch("no/such"))),
        ("no argument", 2, "STORE", run(RUNMOE))):
    check(f"{what}: refused with {status}", ran.returncode == status and text in ran.stderr, (ran.returncode, ran.stderr))
if missing and not e2e._failures:
    skip(missing)
done()
