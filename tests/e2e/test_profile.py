# SPDX-License-Identifier: Apache-2.0
"""A saved profile that is no longer valid: rates follow measured service; the next mount with enough memory measures a
profile of another processor again."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "48", "-l", "8", "--vocab", "1000"))


def saved():
    names = [name for name in os.listdir(scratch("state")) if name.startswith("profile-")]
    return os.path.join(scratch("state"), names[0])


def change(**numbers):
    """Saves the profile with other numbers and a time an hour ago; returns the previous one."""
    with open(saved()) as file:
        profile = json.load(file)
    with open(saved(), "w") as file:
        json.dump({**profile, "measured_at": int(time.time()) - 4000, **numbers}, file)
    return profile


def told(mount):
    return mount.fields("profile")


def spread(profile):
    return max(float(profile[f"{what}_spread"]) for what in ("disk", "decode"))


print("-- a busy machine")
os.makedirs(scratch("state"), exist_ok=True)
result = run(expertctl, "profile", "--seconds=1", "--json", store)
profiles = [name for name in os.listdir(scratch("state")) if name.startswith("profile-")]
told_spread = spread(json.loads(result.stdout))
check("a profile is saved if its rounds agree, else refused with the way out",
      (result.returncode, len(profiles)) == ((0, 1) if told_spread <= .25 else (1, 0)), result)
check("the refusal", result.returncode == 0 or "not saved: its rounds differ" in result.stderr and
      "hint: " in result.stderr and "--force" in result.stderr, result)
result = run(expertctl, "profile", "--force", "--seconds=1", store)
check("a profile is saved", result.returncode == 0, result)

print("-- the processor is another")
change(cpu_path="abacus", disk_bytes_per_second=1e6)
mount = Mount(store, "budget=64M")
check("no memory to measure: the saved profile is used", told(mount)["source"] == "saved" and
      told(mount)["cpu_path"] == "abacus" and int(told(mount)["age_seconds"]) >= 4000, told(mount))
mount.unmount()
mount = Mount(store, "budget=1G")
check("it is measured", wait_until(lambda: told(mount)["source"] == "measured"), told(mount))
profile = told(mount)
check("now", int(profile["age_seconds"]) < 2000, profile)
with open(saved()) as file:
    kept = json.load(file)
if spread(profile) <= .25:
    check("and saved", kept["measured_at"] == int(profile["measured_at"]) and kept["cpu_path"] == profile["cpu_path"] != "abacus",
          (kept, profile))
else:
    check("and not saved: the machine was busy", kept["cpu_path"] == "abacus", (kept, profile))
mount.unmount()


print("-- a copy on another file system")
if os.stat("/dev/shm").st_dev != os.stat(store).st_dev:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        change(disk_bytes_per_second=1e6)
        mount = Mount(store, "budget=1G")
        check("the profile is used where it was measured", told(mount)["source"] == "saved", told(mount))
        mount.unmount()
        mount = Mount(shutil.copy(store, there), "budget=1G")
        check("not that of the other disk", wait_until(lambda: told(mount)["source"] == "measured"), told(mount))
        mount.unmount()


def read_all(mount):
    for name in files_below(mount / "experts"):
        with open(mount / f"experts/{name}", "rb") as file:
            file.read()


print("-- others used the disk when it was measured")
change(disk_bytes_per_second=1e5, read_latency_ns=1e9)
mount = Mount(store, "budget=64M")
check("saved", told(mount)["source"] == "saved", told(mount))
read_all(mount)
profile = told(mount)
if int(profile["live_bursts"]) >= 64:
    check("rates are those of what was read, however far that is",
          float(profile["live_disk_bytes_per_second"]) > 3e6, profile)
    mount.unmount()
    change(disk_bytes_per_second=1e13, read_latency_ns=1)
    mount = Mount(store, "budget=64M")
    read_all(mount)
    profile = told(mount)
    check("slower rates are followed, too", float(profile["live_disk_bytes_per_second"]) < 1e12, profile)
else:
    note(f"only {profile['live_bursts']} bursts of reads: too few to tell")
mount.unmount()
with open(saved()) as file:
    check("nothing that was served is saved", json.load(file)["disk_bytes_per_second"] in (1e5, 1e13))

print("-- nostate")
change(cpu_path="abacus")
with open(saved()) as file:
    before = file.read()
mount = Mount(store, "budget=64M,nostate")
check("nothing is loaded", told(mount)["source"] == "assumed", told(mount))
mount.unmount()
with open(saved()) as file:
    check("nothing is saved", file.read() == before)

print("-- of another version")
change(cpu_path=kept["cpu_path"])
with open(saved()) as file:
    profile = json.load(file)
del profile["disk_spread"]
with open(saved(), "w") as file:
    json.dump(profile, file)
for says in (True, False):
    mount = Mount(store, "budget=1G")
    check("it is measured again", wait_until(lambda: told(mount)["source"] in ("measured", "saved")), told(mount))
    check("the first mount says so, without a warning", ("of another version, without disk_spread; it is measured again" in
          mount.log_text()) == says and "warning" not in mount.log_text(), mount.log_text())
    mount.unmount()
done()
