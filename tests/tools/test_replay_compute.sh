#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay --compute ffn and ffn-coded: the same numbers from every runner, form, budget and batch size; nothing
# is left behind; wrong numbers are told.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh expertfs mkexpertfs moe-replay mkmodel
finish() {
    ! mountpoint -q "$dir/mnt" || fusermount3 -u -z "$dir/mnt"
    rm -rf "$dir"
}
trap finish EXIT
mkdir "$dir/tmp"
export EXPERTFS_STATE=$dir/state TMPDIR=$dir/tmp
run() { # EXIT ARGUMENT...
    ran "$1" "$moe_replay" -q "${@:2}"
    [ -z "$(ls "$dir/tmp")" ] || complain "moe-replay ${*:2}: left behind: $(ls "$dir/tmp")"
}

# The trace has more layers and experts than the model, so that a token can choose an expert twice
"$mkmodel" --family qwen3-moe --layers 3 --experts 12 --hidden 320 --intermediate 192 --vocab 640 --seed 5 "$dir/m" &&
    "$mkexpertfs" -q "$dir/m" "$dir/m.efs" && "$mkexpertfs" -q --codec=zstd "$dir/m" "$dir/z.efs" || exit 1
"$python" - "$dir" <<'P' || exit 1
import random, struct, sys
r = random.Random(1)
with open(f"{sys.argv[1]}/t.route", "wb") as f:
    f.write(b"MOETRACE" + struct.pack("<6IQ", 1, 4, 16, 3, 0, 3, 60) + b"tst")
    for token in range(60):
        f.write(struct.pack("<I", token // 3))
        for _ in range(4):
            f.write(struct.pack("<3H", *r.sample(range(16), 3)))
P
trace=$dir/t.route
peers=(--peer mmap,read-lru --raw "$dir/m")

run 0 --mount "$dir/m.efs" "${peers[@]}" --policy zipmoe,lru --budget 40M,80M --batch 1,4,16 --compute ffn-coded \
    --json "$dir/coded.json" "$trace"
says '^check of what was computed (ffn, 60 tokens): [0-9a-f]*$'
run 0 --mount "$dir/m.efs" --policy lru:full,lru:coded --budget 40M --batch 1,16 --compute ffn-coded --threads 3 \
    --json "$dir/full.json" "$trace"
# What is guessed, and read ahead, changes no number
run 0 --mount "$dir/m.efs" --policy lru,zipmoe --budget 40M --compute ffn-coded --predict mixed \
    --prefetch always --json "$dir/guessed.json" "$trace"
# The same by turns within a run
run 0 --mount "$dir/m.efs" --policy lru --budget 40M --compute ffn-coded --predict mixed --turns 8 --json "$dir/turns.json" "$trace"
run 0 --mount "$dir/m.efs" --policy lru --budget 40M --compute ffn-coded --predict mixed --turns 4:auto:token=1 "$trace"
run 1 --mount "$dir/m.efs" --policy lru --budget 40M --compute ffn-coded --predict mixed --turns 4:never "$trace"
warns 'prefetch'
run 2 --mount "$dir/m.efs" --turns 8 "$trace"
warns 'turns goes with'
# The simulator beside a run of the library goes by what that was like
run 0 --simulate --mount "$dir/m.efs" --policy lru --budget 10% --compute ffn-coded --predict mixed --layer-us 300 \
    --prefetch always --json "$dir/beside.json" "$trace"
says "as it was: .* us beside a layer's reads; an expert runs .* us; all else in a layer [1-9]"
says 'guesses: .* times as fast; '
run 0 --mount "$dir/z.efs" --policy lru --budget 40M --compute ffn-coded --batch 5 --json "$dir/zstd.json" "$trace"
run 0 --store "$dir/m.efs" "${peers[@]}" --budget 40M --batch 1,7 --compute ffn --threads 1 --json "$dir/plain.json" "$trace"
if [ -e /dev/fuse ]; then
    run 0 --mount "$dir/m.efs" --policy lru --budget 128M --batch 1,16 --compute ffn --json "$dir/mount.json" "$trace"
    mkdir "$dir/mnt"
    if "$expertfs" -o budget=80M "$dir/m.efs" "$dir/mnt" 2>"$dir/err"; then
        forms=lru:full # in which the library runs them from the mount's memory
        ! grep -q '^coded: yes' "$dir/mnt/.expertfs/handout" || forms=lru:full,lru:coded
        run 0 --mount "$dir/mnt" --policy "$forms" --budget 80M --batch 1,16 --compute ffn-coded \
            --json "$dir/shared.json" "$trace"
        if [ $forms != lru:full ]; then
            run 0 --mount "$dir/mnt" --policy lru --budget 80M --compute ffn-coded --json "$dir/shared-coded.json" "$trace"
            grep -q '^coded: [1-9]' "$dir/mnt/.expertfs/stat" || complain "nothing was run coded on the mount"
        fi
        fusermount3 -u "$dir/mnt"
    else
        complain "no mount: $(cat "$dir/err")"
    fi
else
    echo "no /dev/fuse: the mount is not compared"
fi
"$python" - "$dir" <<'P' || complain "the numbers"
import json, os, sys
def runs(name):
    path = f"{sys.argv[1]}/{name}.json"
    return json.load(open(path)) if os.path.exists(path) else []
coded = runs("coded")
assert len(coded) == 2 * 3 * 4, len(coded)
for r in coded:
    ours = r["runner"] == "expertfs"
    assert r["compute"] == ("ffn-coded" if ours else "ffn") and r["serving_path"] == ("library" if ours else ""), r
    if ours:
        assert sum(r["hits"].values()) > 0 and r["hits"]["F"] == 0 and r["read_bytes_per_token"] > 0, r
        assert not r["memory_limit_bytes"] or r["memory_peak_bytes"] <= r["memory_limit_bytes"], r
guessed = runs("guessed")
assert len(guessed) == 4 and [bool(r["guesses"]) for r in guessed] == [False, True] * 2, guessed
for r in guessed[1::2]:
    g = r["guesses"]
    assert g["predictor"] == "mixed" and g["used"] + g["late"] <= g["missing"], g
    assert g["wasted_bytes_per_token"] <= g["read_bytes_per_token"] <= r["read_bytes_per_token"], r
turns = runs("turns")
assert [r["turns"]["begins"] for r in turns] == ["without", "with"], turns
for r in turns:
    assert r["turns"]["passes"] == 8 and len(r["turns"]["pass_ns"]) == r["passes"] and min(r["turns"]["pass_ns"]) > 0, r
assert all(r["turns"] is None for r in coded + guessed)
beside = runs("beside")
assert [(r["runner"], bool(r["guesses"])) for r in beside] == [(n, g) for n in ("expertfs", "simulate") for g in (False, True)]
for real, simulated in zip(beside, beside[2:]):
    costs = real["costs"]
    assert simulated["costs_from"] == "run" and simulated["costs"] == costs, (real, simulated)
    assert costs["layer_ns"] >= 300000 and costs["run_ns"] > 0 and costs["read_turn_ns"] > 0 and costs["plans"] >= 1, costs
    assert simulated["plan_bytes"]["C"] > 0 and simulated["tpot_ns_median"] > 3 * costs["layer_ns"], simulated
everything = coded + guessed + turns + beside[:2] + runs("full") + runs("zstd") + runs("plain") + runs("mount") + runs("shared") + runs("shared-coded")
assert {r["runner"] for r in everything} >= {"expertfs", "mmap", "read-lru"}
assert all(r["tokens"] == 60 and r["tpot_ns_median"] > 0 for r in everything)
assert len({r["check"] for r in everything}) == 1, {(r["runner"], r["compute"], r["batch"], r["check"]) for r in everything}
assert int(everything[0]["check"], 16) != 0
assert any(r["hits"]["F"] > 0 for r in runs("full")), runs("full")
P

# Other weights give other numbers, which are told beside the right ones
"$mkmodel" --family qwen3-moe --layers 3 --experts 12 --hidden 320 --intermediate 192 --vocab 640 --seed 6 "$dir/other" || exit 1
run 1 --mount "$dir/m.efs" --peer mmap --raw "$dir/other" --policy lru --budget 40M --compute ffn-coded "$trace"
warns 'mmap with 40M.*numbers are not those'

# What cannot be
run 1 --mount "$dir/tmp" --compute ffn-coded "$trace"
warns 'neither a store nor a mount'
"$mkmodel" --family gpt-oss --layers 2 --experts 4 --hidden 256 --intermediate 128 --vocab 640 "$dir/gpt" &&
    "$mkexpertfs" -q "$dir/gpt" "$dir/gpt.efs" || exit 1
run 1 --mount "$dir/gpt.efs" --compute ffn-coded --budget 40M "$trace"
warns 'compute ffn'
run 1 --mount "$dir/m.efs" --policy lru --budget 1M --allowance 1M --compute ffn-coded "$trace"
warns 'lru.* with 1M'
[ $bad = 0 ] || exit 1
echo "all runners compute the same"
