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
export PYTHON=${PYTHON:-/usr/bin/python3} BENCH_RESULTS=$dir/results
before=$(cgroups)
ahead=$(cat "/sys/class/bdi/$(stat -c %Hd:%Ld "$dir")/read_ahead_kb" 2>/dev/null)
backend=
[ ! -e "$build/libggml-expertfs.so" ] || backend="--ours mount,backend,both,up --budget 200M"
# shellcheck disable=SC2086
bench --limits 700M,none ${backend:---ours mount}
status=$?
[ "$status" != 77 ] || { echo "skipped: $(tail -1 "$dir/out")"; exit 77; }
cat "$dir/out"
[ "$status" = 0 ] || complain "exit $status"
grep -q 'all drew the same tokens' "$dir/out" || complain "no word of the tokens"
"$PYTHON" - "$dir/results/llama.csv" $backend <<'P' || complain "the rows"
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert {(r["limit"], r["what"]) for r in rows} == {(l, w) for l in ("700M", "none, cold", "none, warm")
                                                   for w in ("2 tokens", "3 tokens", "first token", "load", "prompt")}, rows
# the backend, if it was built, without the mount and on it; the plain file with each read-ahead, one row a round
assert {r["ours"] for r in rows} == ({"mount", "backend", "both", "up"} if sys.argv[2:] else {"mount"}), rows
assert "plain" in {r["peer"] for r in rows} <= {"plain", "plain-128K"}, rows
for r in rows:
    value, peer = float(r["value"]), float(r["peer_value"])
    assert abs(float(r["ratio"]) / (value / peer if r["unit"] == "tokens/s" else peer / value) - 1) < 1e-4, r
    assert r["round"] == "1" and r["machine"] and r["user"] and r["time"], r
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
grep -q '^ *BF16-avx2-25%$' "$dir/out" || complain "the table's rows: $(cat "$dir/out")"
BUILD=$build tools/bench/run llama_table --dir "$dir" --table >"$dir/out" || complain "the table"
grep -q '| 3 tokens |.* plain' "$dir/out" || complain "the table: $(cat "$dir/out")"
BUILD=$build tools/bench/run llama_table --dir "$dir" no-such-row 2>/dev/null && complain "a row that there is not"
# A daemon that cannot start is reported, and its cgroup and mount are removed
bench --limits 700M --ours mount --options budget=1M
[ $? = 1 ] || complain "a budget below the floor: exit $?"
grep -q 'below the minimum' "$dir/out" || complain "not told why: $(cat "$dir/out")"
grep -q "$dir" /proc/self/mountinfo && complain "a mount is left"
[ "$(cgroups)" = "$before" ] || complain "a cgroup is left: $(cgroups)"
exit $bad
