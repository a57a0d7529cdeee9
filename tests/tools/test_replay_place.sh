#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# moe-replay place: incompatible tasks, tables, the same numbers for the same seed.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh moe-replay
run() { ran "$1" "$moe_replay" place "${@:2}"; } # EXIT ARGUMENT...
make_trace one 1 8 40
make_trace two 2 8 40
make_trace other 3 8 40 3
make_trace short 4 8 5
make_trace single 5 1 60
head -c 1000 "$dir/one.route" >"$dir/cut.route"
one=$dir/one.route two=$dir/two.route
few=(--servers 3 --prompt 8 --duration 400 --arrival 5)

# Usage
run 2
for wrong in --shape=4x8 --shape=4x8x9 --shape=0x8x2 --shape=4x8x2x --rules=best --rules=prism,,eplb --rules=prism,eplb,prism; do
    run 2 $wrong "$one"
    warns "${wrong%%=*}"
done

# Traces
run 1 "${few[@]}" "$dir/missing"
run 1 "${few[@]}" "$dir/cut.route"
warns 'cut.route: the trace says'
run 1 "${few[@]}" "$one" "$dir/other.route"
warns 'other.route: 3 layers.*--shape'
run 1 "${few[@]}" "$dir/short.route"
warns 'short.route: fewer than two sequences'
run 1 "${few[@]}" --shape 4x32x3 "$one"
warns 'cannot stand for'
run 1 "${few[@]}" --memory 10 "$one" "$two"
warns 'more --memory is needed'
run 1 "${few[@]}" --servers 1024 --arrival 1 --duration 1000000 "$one"
warns 'requests, more than .* --arrival'
run 0 "${few[@]}" --shape 6x8x2 --rules prism "$one" "$dir/other.route"
says '^6 layers, 2 of 8 experts'
run 0 "${few[@]}" --rules prism "$dir/single.route"
says '(2 sequences)'
says '^prism  *[0-9.]*  *-  *-  *[0-9.]'

# Tables: all rules; no rule is faster than all-local; a server that holds all experts is as fast
run 0 "${few[@]}" "$one" "$two"
cp "$dir/out" "$dir/first"
for rule in uniform redundance smartmoe eplb greedy prism ours-calls ours offload redirect all-local; do says "^$rule "; done
awk '/^(uniform|redundance|smartmoe|eplb|greedy|prism|ours)/ { if ($4 < 1) exit 1; n++ } END { exit n != 8 }' "$dir/out" ||
    complain "faster than the bound: $(cat "$dir/out")"
grep -q 'nan\|inf' "$dir/out" && complain "numbers that are none: $(cat "$dir/out")"
run 0 "${few[@]}" "$one" "$two"
for file in first out; do awk 'NF > 9 { print $1, $2, $3, $4, $5, $6, $7 }' "$dir/$file" >"$dir/$file.numbers"; done
cmp -s "$dir/first.numbers" "$dir/out.numbers" || complain "other numbers with the same seed"
run 0 "${few[@]}" --memory 100 --rules prism,all-local "$one" "$two"
says '^prism .* 1.000 .* 100.0 '
run 0 "${few[@]}" --servers 3,4 --mbps 100,1000 --skew 0,100 --rules eplb,ours --review 50 "$one" "$two"
[ "$(grep -c '^ours ' "$dir/out")" = 8 ] || complain "not eight points: $(cat "$dir/out")"

# Tasks that change
run 0 "${few[@]}" --switch --rules prism,ours --review 60 "$one" "$two"
says 'tasks change at half time'

# Output that cannot be written, simulations that would take too long
"$moe_replay" place "${few[@]}" --rules prism "$one" >/dev/full 2>"$dir/err"
ended 'place on a full disk' $? 1
warns 'standard output: '
run 0 "${few[@]}" --expert 1T --rules offload "$one"
exit $bad
