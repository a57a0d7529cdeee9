#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench/run llama on a tiny file: it measures, compares the tokens, and leaves nothing behind.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh expertfs
# cgroups of runs that have ended: the name contains the pid, and other runs may be in progress
cgroups() {
    local group pid
    find /sys/fs/cgroup -maxdepth 2 -type d -name 'expertfs-bench-*' 2>/dev/null | sort | while read -r group; do
        pid=${group##*expertfs-bench-} pid=${pid%%-*}
        [ -d "/proc/$pid" ] || echo "$group"
    done
}
[ -e /dev/fuse ] || { echo "skipped: there is no /dev/fuse"; exit 77; }
bench() {
    BUILD=$build tools/bench/run llama --dir "$dir" --preset tiny-qwen3-moe --tokens 2,3 --rounds 1 --threads 1 "$@" >"$dir/out" 2>&1
}
export PYTHON=${PYTHON:-/usr/bin/python3}
before=$(cgroups)
ahead=$(cat "/sys/class/bdi/$(stat -c %Hd:%Ld "$dir")/read_ahead_kb" 2>/dev/null)
backend=
[ ! -e "$build/libggml-expertfs.so" ] || backend="--ours mount,backend,both,up --budget 200M"
# shellcheck disable=SC2086
bench --limits 700M,none --json "$dir/json" $backend
status=$?
[ "$status" != 77 ] || { echo "skipped: $(tail -1 "$dir/out")"; exit 77; }
cat "$dir/out"
[ "$status" = 0 ] || complain "exit $status"
grep -q 'all runs generated the same 3 tokens' "$dir/out" || complain "no word of the tokens"
"$PYTHON" - "$dir/json" $backend <<'P' || complain "the JSON"
import json, sys
rows = json.load(open(sys.argv[1]))
assert {(r["limit"], r["measure"]) for r in rows} == {(l, m) for l in ("700M", "none, cold", "none, warm")
                                                      for m in ("tokens_per_s", "first_s", "load_s", "prompt_s")}, rows
assert all(r["mount"] > 0 and r["ratio"] > 0 for r in rows), rows
# the backend, if it was built, without the mount and on it
ours = {"mount", "backend", "both", "up"} if sys.argv[2:] else {"mount"}
assert all(set(r["ratios"]) == ours and all(r[kind] > 0 for kind in ours) for r in rows), rows
# the file without expertfs, with each read-ahead; the ratio is to the better one
for r in rows:
    kinds = list(r["plain"].values())
    best = max(kinds) if r["measure"] == "tokens_per_s" else min(kinds)
    assert kinds and min(kinds) > 0, r
    assert abs(r["ratio"] / (r["mount"] / best if r["measure"] == "tokens_per_s" else best / r["mount"]) - 1) < 1e-6, r
# a rate for each number of tokens requested
assert sorted(r["tokens"] for r in rows if r["measure"] == "tokens_per_s" and r["limit"] == "700M") == [2, 3], rows
P
[ "$(cat "/sys/class/bdi/$(stat -c %Hd:%Ld "$dir")/read_ahead_kb" 2>/dev/null)" = "$ahead" ] || complain "another read-ahead is left"
# A quantised file in place, by the backend; rows of a table; the list of the table's rows
if [ -n "$backend" ]; then
    bench --limits 700M --quantize Q8_0 --ours backend --budget 200M --seconds 1 || complain "quantised: $(cat "$dir/out")"
    grep -q 'in place' "$dir/out" || complain "not in place: $(cat "$dir/out")"
    BUILD=$build tools/bench/run llama_rows --dir "$dir" --size 80MB --batches 3 --limit 600M --rounds 1 >"$dir/out" 2>&1 || complain "rows: $(cat "$dir/out")"
    grep -q 'ratio to the better mapping' "$dir/out" || complain "no ratio of rows: $(cat "$dir/out")"
fi
BUILD=$build tools/bench/run llama_table --dir "$dir" --list >"$dir/out" || complain "the table's rows"
[ "$(grep -c '%\|none' "$dir/out")" = 24 ] || complain "the table's rows: $(cat "$dir/out")"
BUILD=$build tools/bench/run llama_table --dir "$dir" no-such-row 2>/dev/null && complain "a row that there is not"
# A daemon that cannot start is reported, and its cgroup and mount are removed
bench --limits 700M --options budget=1M
[ $? = 1 ] || complain "a budget below the floor: exit $?"
grep -q 'below the minimum' "$dir/out" || complain "not told why: $(cat "$dir/out")"
grep -q "$dir" /proc/self/mountinfo && complain "a mount is left"
[ "$(cgroups)" = "$before" ] || complain "a cgroup is left: $(cgroups)"
exit $bad
