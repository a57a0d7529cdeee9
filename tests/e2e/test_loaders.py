# SPDX-License-Identifier: Apache-2.0
"""The loaders of expertfs-guide(7) on a mount: every byte is that of the files, each reads the files once, and it maps or reads them, as
the page says. Those whose package is missing are noted: PYTHON chooses an environment."""
import importlib.util

from e2e import *

need_fuse()
if not shutil.which("strace"):
    skip("strace is not installed")
PYTHON = os.environ.get("PYTHON", sys.executable)
CLIENT = os.path.join(ROOT, "tests/clients/loaders.py")
spec = importlib.util.spec_from_file_location("loaders", CLIENT)
loaders = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaders)

model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "16", "-l", "3", "--experts-per-token", "2", "--vocab", "2000")
store = make_store(model)
files = [os.path.join(model, name) for name in os.listdir(model) if name.endswith(".safetensors")]
size = sum(map(os.path.getsize, files))
tensors = total = 0
for path in files:
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors, total = tensors + len(data) - begin, total + sum(data[begin:])

page = open(os.path.join(ROOT, "man", "expertfs-guide.7")).read()
rows = {row[0].replace("\\(dq", '"'): row[1:] for row in (line[4:].split(" Ta ") for line in page.splitlines() if line.startswith(".It ") and " Ta " in line)}
missing = []
print("   loader: files mapped, calls that read, their bytes over the files'; the daemon: opens, requests, bytes over the files'")
for name in loaders.LOADERS:
    mount = Mount(store, "budget=128M")
    trace = scratch("trace")
    paths = [word for file in files for word in ("-P", mount / os.path.basename(file))]
    before = mount.numbers()
    ran = run("strace", "-f", "-qq", "-o", trace, "-e", "trace=read,readv,pread64,preadv,preadv2,mmap", *paths, PYTHON, CLIENT, name, mount.path)
    after = mount.numbers()
    mount.unmount()
    if ran.returncode == 77:
        missing.append(f"{name}: {ran.stdout.strip()}")
        continue
    if not check(f"{name}: it loads", ran.returncode == 0, ran.stderr[-2000:]):
        continue
    found = json.loads(ran.stdout.splitlines()[-1])
    with open(trace) as file:
        calls = re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).* = (\d+|0x[0-9a-f]+)$", file.read(), re.M)
    read = [int(result) for call, result in calls if call != "mmap"]
    mapped = len(calls) - len(read)
    served = {one: after[f"fuse_{one}"] - before[f"fuse_{one}"] for one in ("opens", "reads", "reply_bytes")}
    print(f"   {name} {found['version']}: {mapped}, {len(read)}, {sum(read) / size:.3f}; "
          f"{served['opens']}, {served['reads']}, {served['reply_bytes'] / size:.3f}")
    if found["bytes"]:
        check(f"{name}: every byte", (found["bytes"], found["sum"]) == (tensors, total), (found, tensors, total))
    way = "maps" if mapped and sum(read) < size // 2 else "reads"  # io_uring is not seen
    version, said = rows.get(name, ("", ""))[:2]
    check(f"{name}: the page says that it {way} the files", said.startswith(way), said)
    if version != found["version"]:
        note(f"the page has version {version}")
    check(f"{name}: each byte once", served["reply_bytes"] < 1.1 * size, served["reply_bytes"] / size)
for line in missing:
    note("left out: " + line)
if len(missing) == len(loaders.LOADERS):
    skip(missing[0])
done()
