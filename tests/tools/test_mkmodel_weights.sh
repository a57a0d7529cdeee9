#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mkmodel --weights: each kind is the same on every run and another than the others; a given checkpoint's values come
# back as often as they were there; what is no checkpoint is refused.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkmodel
make() { "$mkmodel" -q "$@" || complain "mkmodel $*: exit $?"; }
refused() { # WORD ARGUMENT...: exit 1, a message with the word, nothing written
    "$mkmodel" -q --preset=tiny-mixtral "${@:2}" "$dir/refused" >"$dir/out" 2>"$dir/err"
    ended "mkmodel ${*:2}" $? 1
    warns "$1"
    [ ! -e "$dir/refused" ] || complain "mkmodel ${*:2}: something was written"
}

# A checkpoint that both runs can draw from, of this generator's own bytes
make --preset=tiny-mixtral --seed=7 "$dir/given"
given=$(find "$dir/given" -name "*.safetensors" | sort | head -1)

# Whatever the threads, for each type; all kinds differ; scaled is what is made when nothing is said
make --preset=tiny-qwen3-moe "$dir/said-nothing"
for kind in scaled normal heavy "$given" "$dir/given"; do
    name=$(basename "$kind" .safetensors)
    for options in "" "--dtype=fp8" "--dtype=f16" "--dtype=f32 --format=gguf"; do
        # shellcheck disable=SC2086
        {
            make -t 1 --preset=tiny-qwen3-moe --weights="$kind" $options "$dir/one"
            make -t 3 --preset=tiny-qwen3-moe --weights="$kind" $options "$dir/three"
            make -t 2 --preset=tiny-qwen3-moe --weights="$kind" $options --seed=1 "$dir/other"
        }
        diff -r "$dir/one" "$dir/three" >/dev/null || complain "$name $options: other bytes with 3 threads"
        file=$(cd "$dir/one" && ls model*.safetensors ./*.gguf 2>/dev/null | head -1)
        cmp -s "$dir/one/$file" "$dir/other/$file" && complain "$name $options: seed 1 gives seed 0's bytes"
        [ -n "$options" ] || cp -r "$dir/one" "$dir/kind-$name"
        rm -r "$dir/one" "$dir/three" "$dir/other"
    done
done
diff -r "$dir/said-nothing" "$dir/kind-scaled" >/dev/null || complain "--weights=scaled is not what is made without it"
sums() { for kind in "$dir"/kind-*; do sha256sum <"$kind/model-00002-of-00003.safetensors"; done; }
[ "$(sums | sort -u | wc -l)" = 5 ] || complain "two kinds give the same bytes: $(sums)"

# The bytes of a seed do not depend on machine and compiler
golden() { # HASH KIND
    local got
    got=$(sha256sum <"$dir/kind-$2/model-00002-of-00003.safetensors" | cut -c1-16)
    [ "$got" = "$1" ] || complain "$2: other bytes than this seed used to give: $got"
}
golden 6b03bab52e20c600 scaled
golden 0c93dba655f14e47 normal
golden 58e4eb395c355d0c heavy
golden 4387aa38fd3bbe6f given

# What is no checkpoint, or has nothing to draw from
refused "No such file" --weights="$dir/nowhere"
head -c 1000 "$given" >"$dir/short.safetensors"
refused "past the end" --weights="$dir/short.safetensors"
head -c 300000 "$given" >"$dir/cut.safetensors"
refused "past the data" --weights="$dir/cut.safetensors"
head -c 4096 /dev/zero >"$dir/zero.safetensors"
refused "begins with zeros" --weights="$dir/zero.safetensors"
mkdir "$dir/empty"
refused "holds no files" --weights="$dir/empty"
mkdir "$dir/text" && echo hello >"$dir/text/config.json"
refused "no tensor" --weights="$dir/text"
mkfifo "$dir/pipe"
refused "" --weights="$dir/pipe"

# Values and how often they come, by the real packages
status=0
"$python" tests/tools/inspect_weights.py "$mkmodel" "$dir" || { status=$?; [ $status = 77 ] || bad=1; }
[ "$bad" = 0 ] || exit 1
[ "$status" != 77 ] || { echo "the checks with numpy and safetensors were left out: they are not installed"; exit 77; }
echo "weights are spread as asked"
