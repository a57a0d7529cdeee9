#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mkmodel's checkpoints run: llama.cpp and mlx-lm load them, tokenise equally and compute the same; each check of
# tests/clients finds a copy equal and a changed byte different.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkmodel
missing=
client() { # EXIT NAME ARGUMENT...
    local want=$1 name=$2 got
    shift 2
    "$python" "tests/clients/$name" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    tail -1 "$dir/out"
    if [ "$got" = 77 ] && [ "$want" != 77 ]; then
        missing=$(tail -1 "$dir/out")
    elif [ "$got" != "$want" ]; then
        echo "FAILED: $name $*: exit $got, not $want"
        tail -5 "$dir/err"
        bad=1
    fi
}
spoil() { # FILE: changes one byte of a tensor in the middle of the file
    local at=$(($(stat -c %s "$1") / 2))
    printf '%b' "\\x$(printf %02x $((0x$(od -An -tx1 -j $at -N 1 "$1" | tr -d ' ') ^ 0x40)))" |
        dd of="$1" bs=1 seek=$at conv=notrunc status=none
}
for family in mixtral qwen3-moe; do
    "$mkmodel" --preset=tiny-$family --dtype=f32 "$dir/$family-f32" &&
        "$mkmodel" --preset=tiny-$family --dtype=f32 --format=gguf "$dir/$family-f32-gguf" || bad=1
    client 0 runtimes.py agree "$dir/$family-f32" "$dir/$family-f32-gguf/model.gguf"
    "$mkmodel" --preset=tiny-$family --format=gguf "$dir/$family-gguf" && cp -r "$dir/$family-gguf" "$dir/copy-gguf"
    client 0 runtimes.py llama "$dir/copy-gguf/model.gguf" "$dir/$family-gguf/model.gguf"
    client 0 read_all.py --no-view "$dir/copy-gguf" "$dir/$family-gguf"
    "$mkmodel" --preset=tiny-$family --format=gguf --shard-size=1M "$dir/$family-split"
    client 0 runtimes.py llama "$(find "$dir/$family-split" -name 'model-00001-of-*')" "$dir/$family-gguf/model.gguf"
    spoil "$dir/copy-gguf/model.gguf"
    client 1 runtimes.py llama "$dir/copy-gguf/model.gguf" "$dir/$family-gguf/model.gguf"
    client 1 read_all.py --no-view "$dir/copy-gguf" "$dir/$family-gguf"
    rm -r "$dir/copy-gguf"
done
for family in mixtral qwen3-moe deepseek-v2 gpt-oss switch; do
    "$mkmodel" --preset=tiny-$family "$dir/$family" && cp -r "$dir/$family" "$dir/copy"
    case $family in mixtral | qwen3-moe | deepseek-v2) runs=0 changed=1 ;; *) runs=77 changed=77 ;; esac
    client $runs runtimes.py mlx "$dir/copy" "$dir/$family"
    client 0 read_all.py --no-view "$dir/copy" "$dir/$family"
    client 1 read_all.py "$dir/copy" "$dir/$family" # a copy has no experts/
    # in an expert of a last layer, which some of the tokens choose
    spoil "$(find "$dir/copy" -name 'model-*.safetensors' | sort | tail -1)"
    client $changed runtimes.py mlx "$dir/copy" "$dir/$family"
    client 1 read_all.py --no-view "$dir/copy" "$dir/$family"
    rm -r "$dir/copy"
done
[ "$bad" = 0 ] || exit 1
[ -z "$missing" ] || { echo "$missing"; exit 77; }
echo "what mkmodel writes runs"
