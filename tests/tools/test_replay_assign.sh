#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay assign: cost files, tables with known numbers, the output of a measurement.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs moe-replay mkmodel
export EXPERTFS_STATE=$dir/state
run() { ran "$1" "$moe_replay" assign "${@:2}"; } # EXIT ARGUMENT...
make_trace eval 1 6 20
make_trace past 2 6 20
make_trace other 3 2 5 3
head -c 1000 "$dir/eval.route" >"$dir/cut.route"
echo '{"expert_bytes": 2500000, "points": [[1, 100000], [2, 150000], [4, 250000]]}' >"$dir/cpu"
eval=$dir/eval.route

# Usage
run 2 "$eval"
warns 'store'
run 2 --cpu "$dir/cpu" --gpu rtx9 "$eval"

# Files
run 1 --cpu "$dir/missing" "$eval"
run 1 --cpu "$dir/cpu" "$dir/missing"
run 1 --cpu "$dir/cpu" "$dir/cut.route"
warns 'cut.route: the trace says'
run 1 --cpu "$dir/cpu" --plan-from "$dir/other.route" "$eval"
warns 'other.route: 3 layers'
run 1 --store "$dir/missing" "$eval"
for wrong in '{"points": [[1, 5]]}' '{"expert_bytes": 5, "points": []}' '{"expert_bytes": 5, "points": [[1]]}' \
    '{"expert_bytes": 5, "points": [[2, 1], [2, 1]]}' '{"expert_bytes": 5, "points": [[1, -1]]}' \
    '{"expert_bytes": 5, "points": [[1.5, 1]]}' '{"expert_bytes": 1e30, "points": [[1, 1]]}'; do
    echo "$wrong" >"$dir/bad"
    run 1 --cpu "$dir/bad" "$eval"
    warns 'bad: not {"expert_bytes": N'
done
echo '{"expert_bytes": 100000000000, "points": [[1, 1e9]]}' >"$dir/bad"
run 1 --cpu "$dir/bad" "$eval"
warns 'rtx3090 has no memory for --cached 25'
mkfifo "$dir/fifo"
for special in /dev/zero "$dir/fifo"; do
    run 1 --cpu "$special" "$eval"
    warns 'not a regular file'
done

# Output that cannot be written
"$moe_replay" assign --cpu "$dir/cpu" --batch 1 "$eval" >/dev/full 2>"$dir/err"
ended 'assign on a full disk' $? 1
warns 'standard output: '

# One sequence at a time: three experts a layer, each with one token: 100 us on the CPU, 18 on the GPU, 100 for the
# transfer
run 0 --cpu "$dir/cpu" --cached 0 --batch 1 --plan-from "$dir/past.route" "$eval"
says 'an expert 18 us with 1 token.*brought in 100 us'
says '^cpu  *300.0  *1.500'
says '^greedy  *200.0  *1.000  *1.000'
says '^balanced  *200.0  *1.000  *1.000'
says '^optimum  *200.0  *1.000  *1.000'
# Whole systems of four such layers, tokens a second: 300 us a layer; MoE-Lightning copies 16 experts for each
says '^naive  *833.32'
says '^moe-lightning  *156.25'
# Half of the model on the GPU: two layers there, 55 us each; MoE-Lightning copies 8 experts for each layer
run 0 --cpu "$dir/cpu" --cached 50 --batch 1 "$eval"
says '^layers  *1408.4'
says '^moe-lightning  *312.50'
run 0 --cpu "$dir/cpu" --cpu-speed 2 --cached 100 --batch 1,4 "$eval"
says '^cpu  *150.0'
says '^greedy  *50.0'
says '^batch 4: whole systems'
says '^deciding for 256 experts on 8 devices'
grep -q nan "$dir/out" && complain "numbers that are none: $(cat "$dir/out")"

# Measuring
"$mkmodel" --preset=tiny-qwen3-moe "$dir/model" && "$mkexpertfs" -q "$dir/model" "$dir/m.efs" || exit 1
run 0 --store "$dir/m.efs" --cpu "$dir/saved" --batch 1 --tokens 5 "$eval"
"$python" - "$dir/saved" <<'P' || complain "measured: $(cat "$dir/saved")"
import json, sys
cpu = json.load(open(sys.argv[1]))
assert cpu["expert_bytes"] == 98304 and [tokens for tokens, _ in cpu["points"]] == [1, 2, 4, 8, 16, 32, 64], cpu
P
run 0 --cpu "$dir/saved" --batch 1 --tokens 5 "$eval"
exit $bad
