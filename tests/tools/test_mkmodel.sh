#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mkmodel: the same bytes for any number of threads, what real checkpoints look like, exit codes, nothing left behind.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkmodel
make() { "$mkmodel" -q "$@" || complain "mkmodel $*: exit $?"; }
fails() { ran "$1" "$mkmodel" "${@:2}"; } # EXIT ARGUMENT...
left() { find "$1" -mindepth 1 -maxdepth 1 -name '*mkmodel-*' | grep -q . && complain "$1: something is left: $(ls "$1")"; }

# The same bytes whatever the threads, other bytes for another seed
n=0
for options in "--preset=tiny-mixtral" "--preset=tiny-qwen3-moe" "--preset=tiny-deepseek-v2" "--preset=tiny-gpt-oss" \
    "--preset=tiny-switch" "--preset=tiny-mixtral --format=gguf" "--preset=tiny-qwen3-moe --format=gguf --dtype=f16" \
    "--preset=tiny-qwen3-moe --dtype=fp8" "--preset=tiny-deepseek-v2 --dtype=fp8 --hidden=160 --intermediate=96" \
    "--preset=tiny-mixtral --format=gguf --split" "--preset=tiny-qwen3-moe --dtype=f32" "--preset=tiny-gpt-oss --dtype=f16" \
    "--family=qwen3-moe --layers=1 --hidden=1024 --intermediate=1024 --vocab=2048"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    {
        make -t 1 $options "$dir/one-$n"
        make -t 3 $options "$dir/three-$n"
        make -t 2 --seed 1 $options "$dir/other-$n"
    }
    diff -r "$dir/one-$n" "$dir/three-$n" >/dev/null || complain "$options: other bytes with 3 threads"
    for file in "$dir/one-$n"/model*.safetensors "$dir/one-$n"/*.gguf; do
        [ -e "$file" ] || continue
        cmp -s "$file" "$dir/other-$n/$(basename "$file")" && complain "$options: seed 1 gives seed 0's $(basename "$file")"
    done
    [ "$n" = 5 ] || rm -rf "$dir/three-$n" "$dir/other-$n"
done

# The bytes of a seed do not depend on machine and compiler
golden() { # HASH FILE
    [ "$(sha256sum <"$2" | cut -c1-16)" = "$1" ] || complain "$2: other bytes than this seed used to give"
}
golden 6b03bab52e20c600 "$dir/one-2/model-00002-of-00003.safetensors"
golden 2dbc51298ec64c6d "$dir/one-8/model-00001-of-00002.safetensors"

# Names, shapes, sizes, index, entropy, by the real packages
status=0
for checkpoint in "1 BF16" "2 BF16" "3 BF16" "4 BF16" "5 BF16" "8 FP8" "9 FP8" "11 F32" "12 F16" "13 BF16"; do
    # shellcheck disable=SC2086
    set -- $checkpoint
    "$python" tests/tools/inspect_checkpoint.py "$dir/one-$1" "$2" || { status=$?; [ $status = 77 ] || bad=1; }
    [ $status != 77 ] || break
done

# Sizes
make --family=qwen3-moe --size=60M "$dir/sized"
bytes=$(cat "$dir"/sized/*.safetensors | wc -c)
{ [ "$bytes" -gt 50000000 ] && [ "$bytes" -lt 70000000 ]; } || complain "--size=60M gives $bytes bytes"
largest=$(stat -c %s "$dir"/one-5/model-*.safetensors | sort -n | tail -1)
[ "$largest" -le $((1060 * 1024)) ] || complain "shards of 1 MiB have up to $largest bytes"

# Exit codes
"$mkmodel" --help >/dev/null || complain "--help"
"$mkmodel" --version | grep -q '^mkmodel' || complain "--version"
for wrong in "" "a b" "--family=nobody a" "--preset=nobody a" "--dtype=f8 a" "--dtype=fp8 --family=mixtral a" \
    "--format=gguf --family=switch a" "--layers=0 --family=mixtral a" "--layers=-1 --family=mixtral a" \
    "--layers=3 --family=switch a" "--layers=1 --family=deepseek-v2 a" "--hidden=100 --family=mixtral a" \
    "--layers=2 --size=1G --family=mixtral a" "--size=nothing --family=mixtral a" "--shard-size=5X --family=mixtral a" \
    "--vocab=100 --family=mixtral a" "--experts=2 --experts-per-token=3 --family=mixtral a" "--seed=x --family=mixtral a"; do
    # shellcheck disable=SC2086
    fails 2 $wrong
done

# It refuses to overwrite; with --force the files of a checkpoint are replaced and others stay
mkdir "$dir/full" && echo mine >"$dir/full/notes.txt" && echo old >"$dir/full/model-00009-of-00009.safetensors"
fails 1 --preset=tiny-mixtral "$dir/full"
[ "$(find "$dir/full" -type f | wc -l)" = 2 ] || complain "a refused directory was touched"
make --force --preset=tiny-mixtral "$dir/full"
grep -q mine "$dir/full/notes.txt" || complain "--force took away a file of somebody else"
[ ! -e "$dir/full/model-00009-of-00009.safetensors" ] || complain "--force left a shard of another checkpoint"
rm "$dir/full/notes.txt"
diff -r "$dir/full" "$dir/one-1" >/dev/null || complain "--force gives other bytes"
mkdir "$dir/empty"
make --preset=tiny-mixtral "$dir/empty/"
diff -r "$dir/empty" "$dir/one-1" >/dev/null || complain "an empty directory gets other bytes"
left "$dir"

# Nothing is left where it cannot write, when the disk is full, or when it is interrupted
fails 1 --preset=tiny-mixtral "$dir/one-1/config.json"
fails 1 --preset=tiny-mixtral "$dir/none/such"
fails 1 --preset=tiny-mixtral /proc/such
left "$dir"
full_disk() { # in a mount namespace of its own
    # shellcheck disable=SC2016
    unshare "$@" bash -c 'mount -t tmpfs -o size=4M none "$2" && { "$1" -q --family=mixtral --layers=4 "$2/model" 2>"$3"
        echo "exit $?, left: $(ls -A "$2")"; }' _ "$mkmodel" "$dir/small" "$dir/err" 2>/dev/null
}
mkdir "$dir/small"
if result=$(full_disk -m) || result=$(full_disk -rm); then
    [ "$result" = "exit 1, left: " ] || complain "full disk: $result"
    grep -q 'No space left' "$dir/err" || complain "full disk: $(cat "$dir/err")"
else
    echo "no mount namespace here: the full disk is not tested"
fi
mkdir "$dir/stop"
"$mkmodel" -q -t 1 --family=qwen3-moe --size=8G "$dir/stop/model" 2>"$dir/err" &
pid=$!
for _ in $(seq 200); do
    ls -d "$dir"/stop/*mkmodel-*/*.safetensors >/dev/null 2>&1 && break
    sleep 0.02
done
kill -TERM "$pid"
wait "$pid"
status_term=$?
grep -q '^mkmodel: interrupted; nothing was left behind$' "$dir/err" || complain "SIGTERM: $(cat "$dir/err")"
[ "$status_term" = 130 ] || complain "SIGTERM: exit $status_term"
[ -z "$(ls -A "$dir/stop")" ] || complain "interrupted: left $(ls -A "$dir/stop")"

[ "$bad" = 0 ] || exit 1
[ "$status" != 77 ] || { echo "the checks with the safetensors package were left out: it is not installed"; exit 77; }
echo "mkmodel does what it should"
