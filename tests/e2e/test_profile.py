# SPDX-License-Identifier: Apache-2.0
"""A saved profile that does not hold any more: rates follow what is served at once; what that is faster in is saved, what
it is slower in is a doubt that .expertfs/profile and doctor tell, measured again when the mount rests."""
from e2e import *

need_fuse()
os.environ["EXPERTFS_STATE"] = scratch("state")
expertctl = program("expertctl")
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "48", "-l", "8", "--vocab", "1000"))


def saved():
    names = [name for name in os.listdir(scratch("state")) if name.startswith("profile-")]
    return os.path.join(scratch("state"), names[0])


def change(**numbers):
    """Save the profile with other numbers, of an hour ago; what it was."""
    with open(saved()) as file:
        profile = json.load(file)
    with open(saved(), "w") as file:
        json.dump({**profile, "measured_at": int(time.time()) - 4000, **numbers}, file)
    return profile


def told(mount):
    return dict(line.split(": ", 1) for line in mount.control("profile").splitlines())


def mended(what, mount, source):
    check(f"{what}: mended", wait_until(lambda: told(mount)["source"] == source, 100), told(mount))
    profile = told(mount)
    check(f"{what}: of now", int(profile["age_seconds"]) < 2000, profile)
    with open(saved()) as file:
        kept = json.load(file)
    check(f"{what}: and saved", kept["measured_at"] == int(profile["measured_at"]) and
          kept["cpu_path"] == profile["cpu_path"], (kept, profile))
    return profile


result = run(expertctl, "profile", "--seconds=1", store)
check("a profile is saved", result.returncode == 0, result)

print("-- more than 10 GB/s")
was = change(disk_bytes_per_second=12.5e9, decode_bytes_per_second=15.25e9)
mount = Mount(store, "budget=64M")
found = re.search(r"^\w+ +profile .*", run(expertctl, "doctor", mount.path).stdout, re.M)
check("doctor tells such rates of a mount", found and "disk 12.5 GB/s, decode 15.2 GB/s" in found.group(), found)
mount.unmount()
change(**was)

print("-- the processor is another")
change(cpu_path="abacus")
mount = Mount(store, "budget=1G")
profile = told(mount)
check("doubt, and how old it is", profile["source"] == "saved" and "abacus code decoded" in profile["doubt"] and
      int(profile["age_seconds"]) >= 4000, profile)
check("doctor tells of both", re.search(r"^slower +profile .*1h0.m: disk .* in doubt.*abacus", run(expertctl, "doctor",
      mount.path).stdout, re.M))
profile = mended("another processor", mount, "measured")
check("no doubt of that kind is left", "abacus" not in profile["doubt"], profile)
mount.unmount()

def read_all(mount):
    for name in files_below(mount / "experts"):
        with open(mount / f"experts/{name}", "rb") as file:
            file.read()


print("-- others used the disk when it was measured")
change(disk_bytes_per_second=1e6, read_latency_ns=1e8)
found = re.search(r"^(\w+) +profile +(.*)$", run(expertctl, "doctor", store).stdout, re.M)
check("doctor looks at the store", found and found.group(1) == "slower" and "disk 0.001 GB/s" in found.group(2) and
      "expertctl profile" in found.group(2), found)
change(disk_bytes_per_second=1e5, read_latency_ns=1e9)
mount = Mount(store, "budget=64M")
check("saved, and nothing speaks against it yet", told(mount)["doubt"] == "-" and told(mount)["source"] == "saved", told(mount))
read_all(mount)
profile = told(mount)
if int(profile["live_bursts"]) >= 64:
    check("rates are those of what was read, however far that is",
          float(profile["live_disk_bytes_per_second"]) > 3e6, profile)
    until = time.monotonic() + 100
    while told(mount)["source"] != "served" and time.monotonic() < until:
        read_all(mount)
    profile = mended("a busy disk, while it is read", mount, "served")
    check("it is saved as fast as it is", float(profile["disk_bytes_per_second"]) > 3e6, profile)  # or busy again by now
    mount.unmount()
    found = re.search(r"^(\w+) +profile +(.*)$", run(expertctl, "doctor", store).stdout, re.M)
    check("doctor goes by it", found and "disk 0.0001 GB/s" not in found.group(2), found)

    print("-- it is slower than it was; no room for measuring")
    change(disk_bytes_per_second=1e13, read_latency_ns=1)
    mount = Mount(store, "budget=64M")
    read_all(mount)
    profile = told(mount)
    check("rates follow", float(profile["live_disk_bytes_per_second"]) < 1e12, profile)
    check("and it is in doubt", "reads take" in profile["doubt"], profile)
    check("doctor says so", re.search(r"^slower +profile .* in doubt.*reads take", run(expertctl, "doctor",
          mount.path).stdout, re.M))
    mount.unmount()
    with open(saved()) as file: # what decodes faster than it was measured may be saved, but not a slower disk
        check("what may be load is not saved", json.load(file)["disk_bytes_per_second"] == 1e13)
else:
    note(f"only {profile['live_bursts']} bursts of reads: too few to tell")
    mount.unmount()

print("-- nostate")
change(cpu_path="abacus")
with open(saved()) as file:
    before = file.read()
mount = Mount(store, "budget=64M,nostate")
check("nothing is loaded, nothing is in doubt", told(mount)["source"] == "assumed" and told(mount)["doubt"] == "-", told(mount))
mount.unmount()
with open(saved()) as file:
    check("nothing is saved", file.read() == before)
done()
