#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay on real files: through a mount and as peers do. All see the same bytes, stay in their memory, and
# leave nothing behind, however they end.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs moe-replay mkmodel expertfs
live=
finish() {
    if [ -n "$live" ]; then
        kill "$live" 2>/dev/null
        wait "$live" 2>/dev/null
        ! mountpoint -q "$dir/mnt" || fusermount3 -u -z "$dir/mnt"
    fi
    rm -rf "$dir"
}
trap finish EXIT
mkdir "$dir/tmp" "$dir/mnt"
export EXPERTFS_STATE=$dir/state TMPDIR=$dir/tmp
run() { # EXIT ARGUMENT...: output in $dir/out, messages in $dir/err; its process was $last
    local want=$1
    shift
    "$moe_replay" -q "$@" >"$dir/out" 2>"$dir/err" &
    last=$!
    wait $last
    ended "moe-replay $*" $? "$want"
}
groups() { find /sys/fs/cgroup -maxdepth 6 -type d -name "moe-replay-$1" 2>/dev/null; }
clean() { # PID WHAT: nothing of that moe-replay is left
    local left
    left=$(ls "$dir/tmp"; grep -F "$dir/tmp" /proc/self/mounts; groups "$1")
    [ -z "$left" ] || complain "$2 left behind: $left"
}
clean_soon() { # the same, when a process that died cannot wait for it
    for _ in $(seq 200); do
        [ -n "$(ls "$dir/tmp")$(groups "$1")" ] || break
        sleep 0.05
    done
    clean "$1" "$2"
}
wait_for() { # PATTERN FILE
    for _ in $(seq 2400); do
        ! grep -q -- "$1" "$2" || return 0
        sleep 0.05
    done
    complain "no '$1' in: $(cat "$2")"
}

for family in qwen3-moe gpt-oss; do
    "$mkmodel" --family $family --layers 4 --experts 16 --hidden 256 --intermediate 128 --vocab 640 --seed 5 \
        "$dir/$family" && "$mkexpertfs" -q "$dir/$family" "$dir/$family.efs" || exit 1
done
make_trace eval 1 6 5
make_trace long 2 10 2000
raw=$dir/qwen3-moe store=$dir/qwen3-moe.efs eval=$dir/eval.route

# Usage
run 2 --peer mmap --store "$store" "$eval"
warns '--raw'
run 2 --peer mmap,tape --raw "$raw" --store "$store" "$eval"
warns 'tape'
run 2 --peer mmap --raw "$raw" "$eval"
run 2 --peer mmap --raw "$raw" --profile "$eval" "$eval"
run 2 --compute dance --peer mmap --raw "$raw" --store "$store" "$eval"
run 2 --allowance much --peer mmap --raw "$raw" --store "$store" "$eval"
run 2 --threads 0 --peer mmap --raw "$raw" --store "$store" "$eval"
run 1 --mount "$dir/missing" "$eval"
run 1 --mount "$dir/tmp" "$eval"
warns 'neither a store nor a mount'
clean $last "wrong usage"

# Raw checkpoints that are not those of the store
mkdir "$dir/empty" "$dir/other" "$dir/cut" "$dir/noise"
run 1 --peer mmap --raw "$dir/empty" --store "$store" "$eval"
warns 'no safetensors'
run 1 --peer mmap --raw "$dir/gpt-oss" --store "$store" "$eval"
warns 'is missing'
"$mkmodel" --family qwen3-moe --layers 4 --experts 16 --hidden 256 --intermediate 64 --vocab 640 "$dir/other" || exit 1
run 1 --peer mmap --raw "$dir/other" --store "$store" "$eval"
warns 'another size'
for file in "$raw"/*.safetensors; do head -c 5000 "$file" >"$dir/cut/${file##*/}"; done
head -c 4096 /dev/urandom >"$dir/noise/a.safetensors"
for damaged in cut noise; do
    run 1 --peer read-lru --raw "$dir/$damaged" --store "$store" "$eval"
    warns 'damaged'
done
clean $last "wrong raw files"

# Peers: the bytes that the simulator says, the same bytes for both, within their memory
run 0 --simulate --policy lru:raw --peer mmap,read-lru --raw "$raw" --store "$store" --budget 40%,100% --allowance 64M --batch 1,4 \
    --json "$dir/peers.json" "$eval"
says '^read-lru'
clean $last "peers"
"$python" - "$dir/peers.json" <<'P' || complain "peers: $(cat "$dir/out")"
import json, sys
runs = json.load(open(sys.argv[1]))
at = {(r["runner"], r["budget"], r["batch"]): r for r in runs}
assert len(at) == len(runs) == 12
expert = 3 * 256 * 128 * 2
for (runner, budget, batch), run in at.items():
    where = (runner, budget, batch)
    assert run["tokens"] == 30 and run["tpot_ns_median"] <= run["tpot_ns_p99"], where
    simulated, mapped = at["simulate", budget, batch], at["mmap", budget, batch]
    assert sum(run["hits"].values()) == sum(simulated["hits"].values()), where
    if runner == "simulate":
        continue
    assert run["check"] == mapped["check"] != "0" * 16 and run["compute"] == "touch", where
    assert run["tpot_ns_median"] > 0 and run["ttft_ns_median"] > 0, where
    if run["memory_limit_bytes"]:
        assert run["memory_limit_bytes"] == run["budget_bytes"] + (64 << 20), where
        assert 0 < run["memory_peak_bytes"] <= run["memory_limit_bytes"], where
    else:
        assert "no memory cgroup" in run["note"], where
    if runner == "read-lru":
        assert abs(run["hits"]["M"] - simulated["hits"]["M"]) <= (0 if budget == "100%" else simulated["hits"]["M"] / 4), where
        misses = run["hits"]["M"] * expert
        assert misses <= run["read_bytes_per_token"] * 30 <= misses * 1.2, where
P
limited=$("$python" -c 'import json, sys; print(int(all(r.get("memory_limit_bytes", 1) for r in json.load(open(sys.argv[1])))))' "$dir/peers.json")
run 1 --peer read-lru --raw "$raw" --store "$store" --budget 1% "$eval"
warns 'room for'
clean $last "a peer without room"

# What is computed is the same for all, for fused experts too, and wrong bytes are seen
for compute in none touch ffn; do
    run 0 --peer mmap,read-lru --raw "$raw" --store "$store" --budget 50% --compute $compute --json "$dir/$compute.json" "$eval"
done
run 0 --peer mmap,read-lru --raw "$dir/gpt-oss" --store "$dir/gpt-oss.efs" --budget 50% --json "$dir/fused.json" "$eval"
run 1 --peer mmap --raw "$dir/gpt-oss" --store "$dir/gpt-oss.efs" --compute ffn "$eval"
warns 'ffn'
cp "$raw"/* "$dir/other/"
"$python" - "$dir" <<'P' || complain "checks of what was computed"
import glob, json, struct, sys
checks = {}
for name in ("none", "touch", "ffn", "fused"):
    runs = json.load(open(f"{sys.argv[1]}/{name}.json"))
    assert len({r["check"] for r in runs}) == 1 and len(runs) == 2, name
    checks[name] = runs[0]["check"]
assert checks["none"] == "0" * 16 and len(set(checks.values())) == 4, checks
for path in glob.glob(sys.argv[1] + "/other/*.safetensors"):  # one bit of an expert that is surely used
    with open(path, "r+b") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length))
        for name, entry in header.items():
            if name == "model.layers.0.mlp.experts.0.up_proj.weight":
                f.seek(8 + length + entry["data_offsets"][0] + 640)
                byte = f.read(1)[0]
                f.seek(-1, 1)
                f.write(bytes([byte ^ 1]))
P
run 0 --peer read-lru --raw "$dir/other" --store "$store" --budget 50% --json "$dir/wrong.json" "$eval"
"$python" -c 'import json, sys
right, wrong = (json.load(open(f"{sys.argv[1]}/{n}.json"))[0]["check"] for n in ("touch", "wrong"))
assert right != wrong' "$dir" || complain "a wrong bit was not seen"

# Ctrl-C and SIGKILL in a peer's run
"$moe_replay" -q --peer mmap --raw "$raw" --store "$store" --budget 50%,60%,70% --json "$dir/int.json" \
    "$dir/long.route" >"$dir/out" 2>"$dir/err" &
pid=$!
wait_for '^mmap ' "$dir/out"
kill -TERM $pid # as Ctrl-C, which shells make their background jobs ignore
wait $pid
status=$?
[ $status = 130 ] || complain "interrupted: exit $status: $(cat "$dir/err")"
says '^TPOT ms'
"$python" -c 'import json, sys
runs = json.load(open(sys.argv[1]))
assert 1 <= len(runs) <= 3 and all(r["tokens"] > 0 for r in runs)' "$dir/int.json" || complain "interrupted: JSON"
clean $pid "an interrupted run"

# Mounts
[ -e /dev/fuse ] || { echo "no /dev/fuse: peers alone are tested"; [ $bad = 0 ]; exit; }
run 0 --mount "$store" --peer mmap --raw "$raw" --policy lru --budget 128M --batch 1,4 --json "$dir/mount.json" "$eval"
clean $last "a mount"
for compute in none ffn; do
    run 0 --mount "$store" --peer mmap --raw "$raw" --policy lru --budget 128M --compute $compute \
        --json "$dir/mount-$compute.json" "$eval"
done
run 0 --mount "$dir/gpt-oss.efs" --peer mmap --raw "$dir/gpt-oss" --policy lru --budget 128M --json "$dir/mount-fused.json" "$eval"
"$python" - "$dir" <<'P' || complain "mount: $(cat "$dir/out")"
import json, sys
for name in ("mount", "mount-none", "mount-ffn", "mount-fused"):
    for run in json.load(open(f"{sys.argv[1]}/{name}.json")):
        runs = [r for r in json.load(open(f"{sys.argv[1]}/{name}.json")) if r["batch"] == run["batch"]]
        assert [r["runner"] for r in runs] == ["expertfs", "mmap"], name
        assert runs[0]["check"] == runs[1]["check"] and run["tokens"] == 30, (name, runs)
        if run["runner"] == "expertfs":
            assert run["serving_path"] in ("passthrough", "direct_io", "page_cache"), run
            assert run["read_bytes_per_token"] > 0 and run["decode_utilisation"] > 0, run
            assert not run["memory_limit_bytes"] or run["memory_peak_bytes"] <= run["memory_limit_bytes"], run
P
# Little room: what was open goes, and what is mapped stays as it is
"$mkmodel" --family qwen3-moe --layers 4 --experts 16 --hidden 512 --intermediate 512 --vocab 640 "$dir/large" &&
    "$mkexpertfs" -q "$dir/large" "$dir/large.efs" || exit 1
run 0 --mount "$dir/large.efs" --peer read-lru --raw "$dir/large" --policy zipmoe,lru --allowance 64M --budget 48M,64M --batch 1,4 \
    --json "$dir/little.json" "$eval"
clean $last "mounts with little room"
"$python" - "$dir/little.json" <<'P' || complain "little room: $(cat "$dir/out")"
import json, sys
runs = json.load(open(sys.argv[1]))
for batch in (1, 4):
    assert len({r["check"] for r in runs if r["batch"] == batch}) == 1, [(r["runner"], r["budget"], r["check"]) for r in runs]
ours = [r for r in runs if r["runner"] == "expertfs"]
assert len(ours) >= 4 and all(r["tokens"] == 30 for r in runs)
assert any(r["hits"]["M"] > 64 for r in ours), ours  # experts went and came back
P
# A simulation beside a real run comes after it and goes by what it was like; one without goes by the profile
run 0 --simulate --mount "$dir/large.efs" --policy zipmoe,lru,oracle --budget 48M --compute none --json "$dir/beside.json" "$eval"
says 'as it was: disk'
"$python" - "$dir/beside.json" <<'P' || complain "beside a real run: $(cat "$dir/out")"
import json, sys
runs = json.load(open(sys.argv[1]))
at = {(r["runner"], r["policy"]): r for r in runs}
assert [r["runner"] for r in runs] == ["expertfs"] * 2 + ["simulate"] * 3, [r["runner"] for r in runs]
for policy in ("zipmoe", "lru"):
    real, simulated = at["expertfs", policy], at["simulate", policy]
    assert simulated["costs_from"] == "run" and simulated["costs"] == real["costs"], (real, simulated)
    costs = real["costs"]
    assert 0 <= costs["read_together"] <= 1 and costs["plans"] >= 1 and costs["read_turn_ns"] > 0, costs
    assert costs["disk_bytes_per_second"] > 0 and costs["decode_kept_bytes_per_second"] > 0, costs
    assert simulated["tpot_ns_median"] > 0 and sum(simulated["hits"].values()) == sum(real["hits"].values()), simulated
oracle = at["simulate", "oracle"]
assert oracle["costs_from"] == "profile" and oracle["costs"] is None, oracle
P
run 1 --mount "$store" --peer mmap --raw "$raw" --policy lru --budget 1M,128M --allowance 40M --json "$dir/floor.json" "$eval"
warns 'expertfs lru.* with 1M: .*floor\|expertfs lru.* with 1M: .*budget'
"$python" -c 'import json, sys
assert [r["runner"] for r in json.load(open(sys.argv[1]))] == ["mmap", "expertfs", "mmap"]' "$dir/floor.json" ||
    complain "after a run that failed: $(cat "$dir/err")"
run 1 --mount "$store" --expertfs /bin/false --policy lru --budget 128M "$eval"
warns 'the daemon ended'
run 1 --mount "$store" --expertfs "$dir/none" --policy lru --budget 128M "$eval"
clean $last "daemons that failed"

for signal in TERM KILL; do
    "$moe_replay" -q --mount "$store" --policy lru --budget 128M --json "$dir/int.json" "$dir/long.route" \
        >"$dir/out" 2>"$dir/err" &
    pid=$!
    for _ in $(seq 400); do
        ! grep -qF "$dir/tmp" /proc/self/mounts || break
        sleep 0.05
    done
    sleep 0.3
    kill -$signal $pid
    wait $pid 2>/dev/null
    status=$?
    if [ $signal = TERM ]; then
        [ $status = 130 ] || complain "interrupted: exit $status: $(cat "$dir/err")"
        clean $pid "an interrupted mount"
    else
        clean_soon $pid "a killed moe-replay"
    fi
done

# A mount that is there
"$expertfs" -f "$store" "$dir/mnt" -o budget=128M 2>"$dir/daemon" &
live=$!
for _ in $(seq 400); do
    [ ! -e "$dir/mnt/.expertfs/stat" ] || break
    sleep 0.05
done
run 0 --mount "$dir/mnt" --peer mmap --raw "$raw" --policy lru --budget 128M --json "$dir/there.json" "$eval"
[ -e "$dir/mnt/.expertfs/stat" ] || complain "the mount is gone"
"$python" - "$dir/there.json" <<'P' || complain "a mount that was there: $(cat "$dir/out")"
import json, sys
ours, peer = json.load(open(sys.argv[1]))
assert ours["check"] == peer["check"] and ours["memory_limit_bytes"] == 0 and "not cold" in ours["note"], ours
P
attributes() { expertctl_get=$("$(dirname "$moe_replay")/expertctl" get "$dir/mnt") && echo "$expertctl_get" | grep -E 'budget|policy|goal|plan|predictor|prefetch'; }
attributes >"$dir/before" || complain "expertctl get"
run 0 --mount "$dir/mnt" --policy lru,zipmoe --budget 96M --predict mixed --prefetch always "$eval"
attributes >"$dir/after"
cmp -s "$dir/before" "$dir/after" || complain "attributes of the mount: $(diff "$dir/before" "$dir/after")"
run 2 --mount "$dir/mnt" --predict perfect "$eval"
warns 'predict perfect'
run 2 --mount "$dir/mnt" --predict mixed --tune share=0.6 "$eval"
warns 'share=0.6'
clean $last "a mount that was there"
[ $bad = 0 ] || exit 1
[ "$limited" = 1 ] || { echo "peers and mounts are well; no memory cgroup can be made here"; exit 0; }
echo "peers and mounts are well"
