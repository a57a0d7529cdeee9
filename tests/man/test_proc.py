# SPDX-License-Identifier: Apache-2.0
"""expertfs-proc(5) and a real mount have the same names: files, values, counters and gauges, columns, metrics; and the
numbers add up as the page states."""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

need_fuse()
page = open(os.path.join(ROOT, "man", "expertfs-proc.5")).read()


def section(name, macro="Sh"):
    found = re.search(rf"^\.{macro} {name}\n(.*?)(?=^\.S[hs] |\Z)", page, re.M | re.S)
    if not found:
        sys.exit(f"expertfs-proc(5) has no section {name}")
    return found.group(1)


def values(text, macro="Va"):
    found = re.findall(rf"^\.It {macro} (\S+(?: , \S+)*) Ta ", text, re.M)
    return [name for names in found for name in names.split(" , ")]


def same(what, on_page, there):
    twice = {name for name in on_page if on_page.count(name) > 1}
    check(what, set(on_page) == set(there) and not twice,
          f"only on the page: {sorted(set(on_page) - set(there))}; missing on the page: "
          f"{sorted(set(there) - set(on_page))}; twice: {sorted(twice)}")


model = scratch("model")
made = run(program("mkmodel"), "--preset=tiny-qwen3-moe", model)
if made.returncode:
    sys.exit(made.stderr)
os.environ["EXPERTFS_STATE"] = scratch("state")
mount = Mount(make_store(model), "budget=64M")
held = open(mount / "experts/L00/E000.safetensors", "rb")
held.read()
for name in files_below(model):
    open(mount / name, "rb").read()


def names(file):
    return [line.split(": ", 1)[0] for line in mount.control(file).splitlines()]


def head(file):
    return mount.control(file).splitlines()[0].split()


counters, gauges = values(section("Counters", "Ss")), values(section("Gauges", "Ss"))
print("-- names")
same("the files", values(section("DESCRIPTION"), "Pa"), os.listdir(mount / ".expertfs"))
same("version", values(section("VERSION")), names("version"))
same("config", values(section("CONFIG")), names("config"))
same("stat", ["serving_path", "serving_reason"] + counters + gauges, names("stat"))
same("pools: rows", values(section("POOLS"), "Sy"), [line.split()[0] for line in mount.control("pools").splitlines()[1:]])
same("pools: columns", values(section("POOLS")), head("pools"))
same("plan", values(section("PLAN")), names("plan"))
same("profile", values(section("PROFILE")), names("profile"))
same("recent", ["seconds"] + [name for name in counters + gauges if name != "fuse_log_lost"], names("recent"))
same("clients: columns", values(section("CLIENTS")), head("clients"))
same("readers: columns", values(section("READERS")), head("readers"))
same("tensors: columns", values(section("TENSORS")), head("tensors"))
same("layers: columns", values(section("LAYERS")), head("layers"))
same("want", values(section("WANT")), names("want"))
same("hint", values(section("WANT")), names("hint"))
table = mount.control("predict").splitlines()
at = next(i for i, line in enumerate(table) if line.startswith("distance "))
same("predict", values(section("PREDICT")), [line.split(": ", 1)[0] for line in table[:at]] + table[at].split())
same("xattrs of the root", values(section("Of the root", "Ss")),
     os.getxattr(mount.path, "user.expertfs.names").decode().split())
same("xattrs of an expert", values(section("Of an expert", "Ss")),
     os.getxattr(mount / "experts/L00/E000.safetensors", "user.expertfs.names").decode().split())
same("experts", values(section("EXPERTS")), head("experts"))
check("config and stat: lines of name: value", all(": " in line for file in ("version", "config", "stat")
                                                   for line in mount.control(file).splitlines()))
rows = [line.split() for line in mount.control("experts").splitlines()[1:]]
check("experts: states that the page knows", {row[3] for row in rows} <=
      set(re.findall(r"\b[A-Z]\b", re.search(r"^\.It Va state Ta (in memory: .*)$", page, re.M).group(1))))
check("experts: names are files", all(os.path.exists(mount / f"experts/{row[0]}.safetensors") for row in rows))


def family(name):
    return "expertfs_" + (name[:-3] + "_seconds" if name.endswith("_ns") else name)


text = mount.control("metrics")
kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
pool_counters = ["hits", "partial", "admitted", "promoted", "demoted", "evicted", "saved_bytes"]
pool_gauges = ["capacity_bytes", "used_bytes", "experts"]
check("metrics: the pools' columns", {*pool_counters, *pool_gauges} == set(head("pools")) - {"pool", "misses"}, head("pools"))
counted = {family(name) + "_total" for name in counters} | {f"expertfs_pool_{name}_total" for name in pool_counters}
shown = {family(name) for name in gauges} | {f"expertfs_pool_{name}" for name in pool_gauges} | {"expertfs_mount_info"}
same("metrics: families", [*counted, *shown], list(kinds))
check("metrics: counters are counters, gauges are gauges", {name: "counter" if name in counted else "gauge" for name in kinds} == kinds)
samples = re.findall(r"^(\w+)\{.*\} \S+$", text, re.M)
same("metrics: samples", [*counted, *shown], samples)
check("metrics: labels", set(re.findall(r'(\w+)="', text)) == {"mount", "version", "store", "serving_path", "pool"})

print("-- sums")
stat = {}


def reads_add_up():
    """They do not while a read-ahead is in flight."""
    stat.update(mount.numbers())
    return (stat["reads"] == stat["fuse_reads"] + stat["fuse_aheads"] - stat["fuse_ahead_hits"]
            and stat["read_bytes"] == stat["fuse_reply_bytes"] + stat["fuse_ahead_bytes"] - stat["fuse_ahead_hit_bytes"]
            and stat["read_errors"] == stat["fuse_reply_errors"] + stat["fuse_ahead_errors"])


check("reads of engine and daemon", wait_until(reads_add_up), stat)
check("every read with bytes has a piece", stat["reads_f"] + stat["reads_c"] + stat["reads_m"] + stat["reads_generated"]
      >= len(files_below(model)), stat)
check("coded experts", stat["coded"] == stat["coded_c"] + stat["coded_m"] + stat["coded_errors"], stat)
check("leases", stat["lease_errors"] == 0 and stat["leases"] ==
      stat["leases_f"] + stat["leases_c"] + stat["leases_m"] + stat["leases_shared"] + stat["lease_errors"], stat)
check("opens", stat["fuse_opens"] == stat["fuse_opens_passthrough"] + stat["fuse_opens_direct"] +
      stat["fuse_opens_cached"] + stat["fuse_opens_control"] + stat["fuse_open_errors"] + stat["fuse_open_interrupts"] + 1,
      stat)
check("the pools", stat["chunk_used_bytes"] <= stat["chunk_pool_bytes"] and stat["leased_bytes"] <= stat["full_pool_bytes"], stat)
mount.check_budget()
if mount.passthrough():
    more = [open(mount / "experts/L00/E000.safetensors", "rb") for _ in range(3)]
    check("many opens share one lease", mount.count("leases") == stat["leases"] and
          [row.split()[4] for row in mount.control("experts").splitlines() if row.startswith("L00/E000 ")] == ["1"])
    for file in more:
        file.close()
else:
    note(f"left out: leases, because of {mount.config()['passthrough_reason']}")
version = dict(line.split(": ", 1) for line in mount.control("version").splitlines())["version"]
check("the version is the program's", run(program("expertfs"), "--version").stdout.split()[1] == version, version)
held.close()
mount.unmount()
done()
