#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench/gantt.py: trace events from a table in the format of .expertfs/sched; other input is refused.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh
run() { ran "$1" tools/bench/gantt.py "${@:2}"; } # EXIT ARGUMENT...
head='kind     expert                     unit  shard         begin_ns           end_ns   thread'
cat >"$dir/sched" <<E
$head
read_e   L00/E000                      0      0       1000000000       1002000000       11
read_sm  L00/E000                      0      0       1001000000       1004000000       11
read_e   encoder-L01/E017              2      0       1004000000       1004000000       11
decode   L00/E000                      0      0       1004000000       1005500000       12
decode   L00/E000                      0      1       1004100000       1006000000       13
decode   L00/E000                      0      2       1006000000       1007000000       13
E
run 0 "$dir/sched"
"$python" - "$dir/out" <<'P' || complain "the trace events: $(cat "$dir/out")"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
assert sorted(names.items()) == [(0, "read"), (1, "read"), (2, "worker 12"), (3, "worker 13")], names
done = [e for e in events if e["ph"] == "X"]
assert len(done) == 6
lane = lambda e: (e["tid"], e["ts"], e["ts"] + e["dur"])
assert [lane(e) for e in done if e["cat"] == "read_e"][0] == (0, 0, 2000)
assert [lane(e) for e in done if e["cat"] == "read_sm"] == [(1, 1000, 4000)]
assert [lane(e) for e in done if e["cat"] == "decode"] == [(2, 4000, 5500), (3, 4100, 6000), (3, 6000, 7000)]
assert done[0]["args"] == {"unit": 0, "shard": 0}
for tid in names:  # no overlap in a lane
    at = sorted(lane(e)[1:] for e in done if e["tid"] == tid)
    assert all(a[1] <= b[0] for a, b in zip(at, at[1:])), at
P
for line in "decode L00/E000 0 0 2 1 5" "decode L00/E000 0 0 1 2" "run L00/E000 0 0 1 2 5" \
    "decode L00/E000 0 0 1 2 5 6" "decode L00/E000 x 0 1 2 5" ""; do
    printf '%s\n%s\n' "$head" "$line" >"$dir/other"
    run 1 "$dir/other"
    grep -q 'line 2' "$dir/err" || complain "'$line': $(cat "$dir/err")"
done
echo "$head" >"$dir/none"
run 0 "$dir/none"
echo "model: x" >"$dir/other"
run 1 "$dir/other"
run 1 "$dir/missing"
run 1
run 1 a b
mkdir -p "$dir/mnt/.expertfs" && cp "$dir/sched" "$dir/mnt/.expertfs/"
run 0 "$dir/mnt"
[ "$(grep -o '"ph": "X"' "$dir/out" | wc -l)" = 6 ] || complain "a mount: $(cat "$dir/out")"
[ $bad = 0 ] && echo "gantt: well"
exit $bad
