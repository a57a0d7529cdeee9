#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay assign: options, files of costs, tables whose numbers are known, what measuring writes.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs moe-replay mkmodel
export EXPERTFS_STATE=$dir/state
run() { ran "$1" "$moe_replay" assign "${@:2}"; } # EXIT ARGUMENT...
make_trace eval 1 6 20
make_trace past 2 6 20
make_trace other 3 2 5 3
head -c 1000 "$dir/eval.route" >"$dir/cut.route"
printf 'expert_bytes 1000000\ntokens 1 100 80\ntokens 2 150 120 # in between by lines\ntokens 4 250 200\n' >"$dir/cpu"
printf 'memory_bytes 4e9\nbytes_per_second 1e12\nflops 1e15\nlaunch_us 9\nlink_bytes_per_second 1e10\n' >"$dir/gpu"
eval=$dir/eval.route

# Usage
run 0 --help
says 'Usage: moe-replay assign'
run 2
run 2 "$eval"
warns 'store'
run 2 --cpu "$dir/cpu" --store x "$eval"
run 2 --cpu "$dir/cpu" --save-cpu x "$eval"
for wrong in --batch=0 --batch=65 --batch=1,x --batch= --cached=101 --cpu-speed=0 --prefetch=-1 --window=0 --swaps=65 \
    --tokens=0 --threads=65 --layer-us=x; do
    run 2 --cpu "$dir/cpu" $wrong "$eval"
    warns "${wrong%%=*}"
done

# Files
run 1 --cpu "$dir/missing" "$eval"
run 1 --cpu "$dir/cpu" "$dir/missing"
run 1 --cpu "$dir/cpu" "$dir/cut.route"
warns 'cut.route: the trace says'
run 1 --cpu "$dir/cpu" --plan-from "$dir/other.route" "$eval"
warns 'other.route: 3 layers'
run 1 --cpu "$dir/cpu" --gpu "$dir/missing" "$eval"
run 1 --store "$dir/missing" "$eval"
bad_file() { # OPTION TEXT WORDS: the file is refused with these words
    printf '%b' "$2" >"$dir/bad"
    run 1 --cpu "$dir/cpu" "$1" "$dir/bad" "$eval"
    warns "$3"
}
bad_file --cpu 'tokens 1 100 80\n' 'no expert_bytes'
bad_file --cpu 'expert_bytes 5\n' 'no line of tokens'
bad_file --cpu 'expert_bytes 5\ntokens 1 100\n' 'bad:2: '
bad_file --cpu 'expert_bytes 5\ntokens 1.5 1 1\n' 'bad:2: '
bad_file --cpu 'expert_bytes 5\ntokens 1 nan 1\n' 'bad:2: '
bad_file --cpu 'expert_bytes 5\ntokens 1 1 -1\n' 'bad:2: '
bad_file --cpu 'expert_bytes 5\ntokens 2 1 1\ntokens 2 1 1\n' 'bad:3: .*rising'
bad_file --cpu 'speed 5\n' 'bad:1: '
bad_file --gpu 'flops 1e12\n' 'no memory_bytes'
bad_file --gpu 'flops much\n' 'bad:1: '
bad_file --gpu 'cores 5\n' 'bad:1: '
bad_file --gpu 'memory_bytes 2e9\nbytes_per_second 1e12\nflops 1e15\nlaunch_us 9\nlink_bytes_per_second 1e10\n' \
    'has no memory for --cached 25'
bad_file --gpu "#$(printf '%0300d' 0)\n" 'bad:1: a line of more than'
bad_file --cpu 'expert_bytes 0.5\ntokens 1 100 80\n' 'bad:1: '
run 1 --cpu /dev/zero "$eval"
warns '/dev/zero: not a regular file'
mkfifo "$dir/fifo"
run 1 --cpu "$dir/cpu" --gpu "$dir/fifo" "$eval"
warns 'fifo: not a regular file'
gpu_of() { printf 'memory_bytes 4e9\nbytes_per_second %s\nflops 1e15\nlaunch_us 9\nlink_bytes_per_second %s\n' "$@"; }
bad_file --gpu "$(gpu_of 1e-300 1e10)\n" 'bad: to run an expert .*more than 1000 s'
bad_file --gpu "$(gpu_of 1e12 4e-320)\n" 'bad: to bring an expert .*more than 1000 s'

# What cannot be written
"$moe_replay" assign -q --cpu "$dir/cpu" --batch 1 "$eval" >/dev/full 2>"$dir/err"
ended 'assign on a full disk' $? 1
warns 'standard output: '

# One sequence at a time: three experts a layer, each with one token, 100 us here, 10 there, 100 to bring
run 0 -q --cpu "$dir/cpu" --gpu "$dir/gpu" --cached 0 --batch 1 --plan-from "$dir/past.route" "$eval"
says 'an expert 10 us with 1 token.*brought in 100 us'
says '^cpu  *300.0  *1.500'
says '^greedy  *200.0  *1.000  *1.000'
says '^balanced  *200.0  *1.000  *1.000'
says '^optimum  *200.0  *1.000  *1.000'
run 0 -q --cpu "$dir/cpu" --gpu "$dir/gpu" --coded --cpu-speed 2 --cached 100 --batch 1,4 "$eval"
says '^cpu  *120.0'
says '^greedy  *30.0'
says '^batch 4: whole systems'
says '^deciding for 256 experts on 8 devices'
grep -q nan "$dir/out" && complain "numbers that are none: $(cat "$dir/out")"

# Measuring
"$mkmodel" -q --preset=tiny-qwen3-moe "$dir/model" && "$mkexpertfs" -q "$dir/model" "$dir/m.efs" || exit 1
run 0 -q --store "$dir/m.efs" --threads 1 --save-cpu "$dir/saved" --batch 1 --tokens 5 "$eval"
[ "$(grep -c '^tokens ' "$dir/saved")" = 7 ] || complain "measured: $(cat "$dir/saved")"
grep -qx 'expert_bytes 98304' "$dir/saved" || complain "measured: $(cat "$dir/saved")"
run 0 -q --cpu "$dir/saved" --batch 1 --tokens 5 "$eval"
exit $bad
