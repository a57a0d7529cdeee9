#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay predict: options, a repetitive trace and one of another shape, figures of each predictor.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh moe-replay
run() { ran "$1" "$moe_replay" predict "${@:2}"; } # EXIT ARGUMENT...
figures() { # PREDICTOR: its row, without its name
    sed -n "s/^$1  *//p" "$dir/out"
}
make_trace eval 1 6 20
make_trace past 2 6 20
make_trace other 3 2 20 5 16 3
make_trace one 4 2 20 1 8 2
head -c 1000 "$dir/eval.route" >"$dir/cut.route"
# The same token repeatedly, which all predictors except global counts predict: four layers, two of eight experts
"$python" - "$dir/same.route" <<'P' || exit 1
import struct, sys
with open(sys.argv[1], "wb") as f:
    f.write(b"MOETRACE" + struct.pack("<6IQ", 1, 4, 8, 2, 0, 3, 40) + b"tst")
    for token in range(40):
        f.write(struct.pack("<I8H", token // 20, 0, 1, 2, 3, 4, 5, 6, 7))
P

run 0 --version
says '^moe-replay (expertfs) [0-9]'
run 2 --predictors nothing "$dir/eval.route"
warns 'no such predictor'
run 2 --predictors fmoe:some "$dir/eval.route"
run 2 --predictors fmoe:0 "$dir/eval.route"
run 2 --predictors request:7 "$dir/eval.route"
run 1 "$dir/missing.route"
run 1 "$dir/cut.route"
run 1 --history "$dir/other.route" "$dir/eval.route"
warns 'another shape'
run 1 --memory 1K "$dir/eval.route"
warns 'memory is too little'

run 0 --history "$dir/past.route" "$dir/eval.route"
says '^history: 120 tokens; each request begins with what the history taught'
names=$(sed -n '/^[a-z-]* .*[0-9]\.[0-9]/s/ .*//p' "$dir/out" | tail -n +1)
for name in deepspeed brainstorm request transition edgemoe moe-infinity fmoe mixed; do
    grep -q "^$name  *[01]\." <<<"$(sed -n "/^$name /p" "$dir/out")" || complain "no row of $name in: $(cat "$dir/out")"
done
[ -n "$names" ] || complain "no rows"
run 0 --predictors request,edgemoe --every 7 --tokens 50 --learn all "$dir/eval.route"
[ "$(grep -c '^\(request\|edgemoe\) ' "$dir/out")" = 2 ] || complain "a list of two: $(cat "$dir/out")"
says '^tst: 50 tokens, every 7 judged'
run 0 --predictors fmoe:trajectory,fmoe:semantic,fmoe:topk,fmoe:5,mixed:7,moe-infinity:2 "$dir/eval.route"
[ "$(grep -c '^[a-z-]*:[a-z0-9][a-z0-9]* ' "$dir/out")" = 6 ] || complain "variants: $(cat "$dir/out")"
run 0 --history "$dir/past.route" --history "$dir/past.route" "$dir/eval.route"
says '^history: 240 tokens'
run 0 --learn no "$dir/eval.route"
says 'nothing is learned'
run 0 "$dir/one.route" # a single layer: only the next token is ahead

# Hidden states: all layers of a token have the same one and the same router
run 1 --predictors linear "$dir/eval.route"
warns 'linear: .*eval.route has no hidden states;'
run 0 "$dir/eval.route"
says 'no hidden states: without the predictors that need them'
grep -q '^dali' "$dir/out" && complain "a predictor without what it needs: $(cat "$dir/out")"
states_trace() { # NAME PARTS
    "$python" - "$dir/$1.route" "$2" <<'P' || exit 1
import random, struct, sys
L, E, K, T, r = 4, 8, 2, 200, random.Random(1)
parts = int(sys.argv[2])
with open(sys.argv[1], "wb") as f:
    f.write(b"MOETRACE" + struct.pack("<6IQ2I", 2, L, E, K, parts, 3, T, E, 0) + b"tst")
    for e in [e for layer in range(L) for e in range(E)] if parts & 16 else []:
        f.write(struct.pack(f"<{E}e", *[8 * (i == e) for i in range(E)]))
    for token in range(T):
        state = [r.random() for e in range(E)]
        states = [state] * L
        order = sorted(range(E), key=lambda e: -struct.unpack("<e", struct.pack("<e", state[e]))[0])
        f.write(struct.pack(f"<2I{L * K}H", token // 50, 1 + token % 2, *order[:K] * L))
        f.write(struct.pack(f"<{L * E}e", *[s / 8 for layer in states for s in layer]))
        f.write(struct.pack(f"<{L * E}e", *[s for layer in states for s in layer]) + bytes(2 * E))
P
}
states_trace states $((2 + 4 + 8 + 16))
states_trace no-routers $((2 + 4 + 8))
run 0 --learn no "$dir/states.route"
says 'scores of all experts'
for name in mixtral-offloading hybrimoe dali linear; do
    grep -q '^1.000 1.000 1.000 ' <<<"$(figures $name)" || complain "$name: $(figures $name)"
done
run 1 --history "$dir/states.route" --predictors dali "$dir/same.route"
run 0 --history "$dir/states.route" --predictors mixed "$dir/same.route" # states of the history alone are not used
run 1 --predictors promoe "$dir/states.route" # trained ahead, from a history with states
warns 'promoe: no --history with hidden states to train on'
run 1 --predictors promoe --history "$dir/eval.route" "$dir/states.route"
for trace in states no-routers; do
    run 0 --history "$dir/no-routers.route" "$dir/$trace.route"
    grep -q '^0\.[89][0-9]* 0\.[89]' <<<"$(figures promoe)" || complain "promoe: $(figures promoe)"
done
says 'no weights of the routers: without the predictors that need them'
grep -q '^dali' "$dir/out" && complain "a predictor without the routers: $(cat "$dir/out")"
run 1 --predictors dali "$dir/no-routers.route"
warns 'dali: .*no-routers.route has no weights of the routers;'

# With the repetitive trace as history all predictions are right; deepspeed has none for the first of 20 tokens
run 0 --history "$dir/same.route" --predictors deepspeed,brainstorm,transition,edgemoe,moe-infinity,fmoe,mixed "$dir/same.route"
for name in deepspeed transition edgemoe brainstorm moe-infinity fmoe mixed; do
    row=$(figures $name)
    case $name in deepspeed) want='^0.950 0.950 0.950 0.000 ' ;; *) want='^1.000 1.000 1.000 0.000 ' ;; esac
    grep -q "$want" <<<"$row" || complain "$name: $row"
done
# The same figures each time, except times
sed 's/ *[0-9.]* *[0-9.]*$//' "$dir/out" >"$dir/first"
run 0 --history "$dir/same.route" --predictors deepspeed,brainstorm,transition,edgemoe,moe-infinity,fmoe,mixed "$dir/same.route"
sed 's/ *[0-9.]* *[0-9.]*$//' "$dir/out" | cmp -s - "$dir/first" || complain "figures change from run to run"
exit $bad
