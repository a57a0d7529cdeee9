#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Predictors by hidden states on routing of a trained model (tests/traces/): each finds what it found before, or more.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh moe-replay
"$moe_replay" predict --learn all tests/traces/smallmoe.route >"$dir/out" 2>"$dir/err"
ended "moe-replay predict" $? 0
says '^runmoe: 640 tokens, every 1 judged; 8 layers of 16 experts, K = 4; scores of all experts'
at_least() { # PREDICTOR COLUMN FIGURE
    local found
    found=$(awk -v name="$1" -v column="$(($2 + 1))" '$1 == name {print $column}' "$dir/out")
    awk -v found="${found:-0}" -v least="$3" 'BEGIN {exit !(found >= least && found <= 1)}' ||
        complain "$1: column $2 is ${found:-missing}, was $3 or more"
}
# recall@K one and four layers ahead, recall@2K one ahead
for row in 'mixtral-offloading 0.82 0.65 0.98' 'hybrimoe 0.82 0.38 0.98' 'dali 0.83 0.68 0.98' 'linear 0.84 0.70 0.98' \
    'transition 0.53 0.49 0.80' 'mixed 0.71 0.67 0.90'; do
    read -r name one four twice <<<"$row"
    at_least "$name" 1 "$one"
    at_least "$name" 4 "$four"
    at_least "$name" 5 "$twice"
done
exit $bad
