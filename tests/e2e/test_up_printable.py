# SPDX-License-Identifier: Apache-2.0
"""Names with control characters reach no terminal: what expertctl prints of them is on one line, without escapes."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
plain, _ = shared(NARROW)
# DEL, and CSI as one character: terminals obey these, too
model = scratch("odd\x1b[31m\nname\x7f\u009b1m")
shutil.copytree(plain, model)
DATA = scratch("data/expertfs")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def printed(what, *words, statuses=(0,)):
    result = run(expertctl, *words)
    text = result.stdout + result.stderr
    check(f"{what}: it is done, without a control character", result.returncode in statuses and text and not CONTROL.search(text) and
          "\nname" not in text, result)


result = run(expertctl, "up", "-o", "budget=64M", model)
check("up: packing", result.returncode == 0 and "packing" in result.stderr and not CONTROL.search(result.stderr) and
      not re.search("[\x00-\x09\x0b-\x1f\x7f]", result.stdout) and "\nname" not in result.stderr, result)
mount = os.path.join(DATA, os.path.basename(model))
store = next(f"{DATA}/{name}" for name in os.listdir(DATA) if name.endswith(".efs"))
for what, words in (("status", ["status", mount]), ("doctor", ["doctor", mount]), ("ls", ["ls"]), ("info", ["info", store]),
                    ("info of the model", ["info", model]), ("verify", ["verify", store]),
                    ("unpack", ["unpack", store, scratch("un\x1bpacked")])):
    printed(what, *words)
printed("profile", "profile", "--seconds=1", store, statuses=(0, 1))  # 1: the rates vary on a busy machine
result = run(expertctl, "log", mount)
check("log: no control character", result.returncode == 0 and result.stdout and not CONTROL.search(result.stdout), result)
run(expertctl, "down", mount)
printed("rm", "rm", "-y", store)
done()
