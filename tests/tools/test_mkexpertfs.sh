#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mkexpertfs: every kind of checkpoint with every codec, options, exit statuses, output, nothing left behind.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs expertctl mkmodel
pack() { "$mkexpertfs" -q "$@" || complain "mkexpertfs $*: exit $?"; }
fails() { # EXIT ARGUMENT...
    ran "$1" "$mkexpertfs" "${@:2}"
    [ ! -s "$dir/out" ] || complain "mkexpertfs ${*:2}: $(head -1 "$dir/out") on standard output"
}
field() { "$python" -c 'import json, sys; v = json.load(sys.stdin)
for k in sys.argv[1].split("."): v = v[int(k) if k.isdigit() else k]
print(v)' "$1"; }

# Every family and dtype, packed, verified, restored
mkdir "$dir/stores"
n=0
for options in --preset=tiny-mixtral --preset=tiny-qwen3-moe --preset=tiny-deepseek-v2 --preset=tiny-gpt-oss \
    --preset=tiny-switch "--preset=tiny-mixtral --format=gguf" "--preset=tiny-qwen3-moe --format=gguf --dtype=f16" \
    "--preset=tiny-qwen3-moe --dtype=fp8" "--preset=tiny-qwen3-moe --dtype=f32" "--preset=tiny-gpt-oss --dtype=f16"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    "$mkmodel" $options "$dir/model-$n" || complain "mkmodel $options"
    pack --verify "$dir/model-$n" "$dir/stores/$n.efs"
    "$expertctl" unpack -q "$dir/stores/$n.efs" "$dir/back-$n" || complain "unpack of $options"
    diff -r "$dir/model-$n" "$dir/back-$n" || complain "$options: other files came back"
    [ "$("$expertctl" info --json "$dir/stores/$n.efs" | field experts)" -gt 0 ] || complain "$options: no experts"
done
rm -rf "$dir"/back-*

# The requested codec is used, and the bytes are the same
for codec in auto cascade zstd lz4 raw; do
    pack --codec $codec --verify --shard-size 64K "$dir/model-2" "$dir/stores/$codec.efs"
    counts=$("$expertctl" info --json "$dir/stores/$codec.efs" | "$python" -c 'import json, sys
print({k: v["shards"] for k, v in json.load(sys.stdin)["codecs"].items() if v["shards"]})')
    case $codec in
    raw) [ "$counts" = "{'none': $(grep -o '[0-9]*' <<<"$counts" | head -1)}" ] || complain "--codec raw: $counts" ;;
    auto) grep -q cascade <<<"$counts" || complain "--codec auto: $counts" ;;
    *) grep -q "'$codec'" <<<"$counts" || complain "--codec $codec: $counts" ;;
    esac
    for other in cascade zstd lz4; do
        case $codec in auto | "$other") continue ;; esac
        ! grep -q "'$other'" <<<"$counts" || complain "--codec $codec used $other: $counts"
    done
done

# Output
text=$("$mkexpertfs" -f "$dir/model-2" "$dir/stores/2.efs" 2>"$dir/err") || complain "with a table: exit $?"
for word in class entropy expert dense other BF16 Qwen3MoeForCausalLM; do
    grep -q "$word" <<<"$text" || complain "the table has no '$word': $text"
done
[ -z "$(sed "s,$dir/stores/,," <<<"$text" | awk 'length > 80')" ] || complain "what it prints does not fit 80 columns: $text"
tensors=$(sed -n 's/.* files, \([0-9]*\) tensors, .*/\1/p' <<<"$text")
[ "$(awk '$1 == "all" {print $2}' <<<"$text")" = "$tensors" ] || complain "the table counts other tensors: $text"
[[ "$("$mkexpertfs" -f "$dir/model-6/model.gguf" "$dir/stores/6.efs")" == *": 1 file, "* ]] || complain "not: 1 file"
[ "$("$mkexpertfs" -q -f "$dir/model-2" "$dir/stores/2.efs" 2>&1)" = "" ] || complain "--quiet is not"
json=$("$mkexpertfs" --json -f "$dir/model-2" "$dir/stores/2.efs" 2>/dev/null) || complain "--json: exit $?"
[ "$(field store_bytes <<<"$json")" = "$(stat -c %s "$dir/stores/2.efs")" ] || complain "--json: $json"
[ "$(field rows.0.class <<<"$json")" = expert ] || complain "--json: $json"
mkdir "$dir/dense" && echo text >"$dir/dense/a.txt"
cp "$dir/model-2/model-00001-of-"*.safetensors "$dir/dense/model.safetensors"
sed -i 's/\.experts\./.unknown./g' "$dir/dense/model.safetensors" # the same length, so offsets stay
# No experts: a warning, also with -q, and an expression that finds them
"$mkexpertfs" -q "$dir/dense" "$dir/stores/dense.efs" 2>"$dir/err"
grep -q '^mkexpertfs: warning: .*no experts were found' "$dir/err" || complain "no warning of an unknown family: $(cat "$dir/err")"
grep -q "^hint: the largest tensors are .*unknown.*--experts 'REGEX'" "$dir/err" || complain "no hint: $(cat "$dir/err")"
[ "$("$mkexpertfs" --json -f "$dir/dense" "$dir/stores/dense.efs" 2>"$dir/err" | field warning | head -1 | cut -c-10)" = "no experts" ] ||
    complain "--json: no warning"
json=$("$mkexpertfs" -q --json -f --experts '([0-9]+)\.mlp\.unknown\.([0-9]+)\.' "$dir/dense" "$dir/stores/dense.efs" 2>"$dir/err") ||
    complain "--experts: exit $?"
[ "$(field experts <<<"$json")" -gt 0 ] || complain "--experts: $json"
[ ! -s "$dir/err" ] || complain "--experts: $(cat "$dir/err")"
fails 1 -f --experts 'absent\.([0-9]+)' "$dir/dense" "$dir/stores/dense.efs"
fails 1 -f --experts 'no group' "$dir/dense" "$dir/stores/dense.efs"
fails 2 --resume --experts 'x([0-9])' "$dir/stores/dense.efs"
"$mkexpertfs" --version | grep -q '^mkexpertfs (expertfs) [0-9]' || complain "--version"
# The same bytes for any number of threads, and in another directory
mv "$dir/model-3" "$dir/moved"
pack -t 1 "$dir/moved" "$dir/stores/one.efs"
pack -t 7 "$dir/moved/" "$dir/stores/seven.efs"
cmp "$dir/stores/one.efs" "$dir/stores/seven.efs" || complain "-t 7 gives other bytes"
cmp "$dir/stores/one.efs" "$dir/stores/3.efs" || complain "another place gives other bytes"

# Exit codes
for wrong in "" a "a b c" "--codec=gzip a b" "--threads=0 a b" "--shard-size=1 a b" "--shard-size=20000 a b" \
    "--shard-size=16M a b"; do
    # shellcheck disable=SC2086
    fails 2 $wrong
done
fails 1 "$dir/missing" "$dir/stores/x.efs"
fails 1 "$dir/model-1" "$dir/missing/x.efs"
fails 1 "$dir/model-1" "$dir/model-1/x.efs"
fails 1 "$dir/model-1" /proc/x.efs
fails 1 "$dir/model-1" "$dir/stores"
fails 1 "$dir/model-1" "$dir/stores/2.efs"
grep -q -- --force "$dir/err" || complain "an existing store: the message does not name --force"
grep -q -- 'own name, such as' <("$mkexpertfs" "$dir/model-1" "$dir/stores" 2>&1) || complain "a directory as OUT: what to do is not said"
fails_deep() ( # a working directory with a path longer than PATH_MAX
    cd "$dir" && for _ in $(seq 20); do mkdir -p "$1" && cd "$1" || exit 1; done
    cp -r "$dir/model-1" model && ran 1 "$mkexpertfs" model model.efs && [ "$bad" = 0 ]
)
fails_deep "$(printf 'd%.0s' $(seq 250))" || complain "a path longer than PATH_MAX"
grep -q ": File name too long" "$dir/err" || complain "a path longer than PATH_MAX: $(cat "$dir/err")"
mkdir "$dir/nonsense" && echo abc >"$dir/nonsense/a.txt"
for source in "$dir/nonsense" "$dir/nonsense/a.txt"; do
    fails 1 "$source" "$dir/stores/x.efs"
    [[ "$(cat "$dir/err")" == *"no weights found"*$'\nhint: '*--any* ]] || complain "$source: $(cat "$dir/err")"
done
pack --any "$dir/nonsense" "$dir/stores/any.efs"

# A checkpoint with parts missing, one part alone, and the cache of a hub
for kind in safetensors gguf; do # parts are recognised by their names
    rm -rf "$dir/parts"
    mkdir -p "$dir/parts/deeper"
    "$mkmodel" --preset=tiny-mixtral --format=$kind --shard-size=100G "$dir/parts/made" || complain "mkmodel $kind: exit $?"
    mv "$dir/parts/made/"model*.$kind "$dir/parts/one.$kind"
    rm -r "$dir/parts/made"
    for part in 00001-of-00003 00002-of-00003 00003-of-00003 001-of-2 002-of-2 00001-of-00001 5-of-4; do
        cp "$dir/parts/one.$kind" "$dir/parts/deeper/m-$part.$kind"
    done
    mkdir "$dir/parts/alone"
    cp "$dir/parts/one.$kind" "$dir/parts/alone/m-00002-of-00003.$kind"
    fails 1 "$dir/parts/alone/m-00002-of-00003.$kind" "$dir/stores/x.efs"
    rm -r "$dir/parts/alone"
    grep -q "hint: put the other parts next to it" "$dir/err" || complain "one part of three: $(cat "$dir/err")"
    pack --any "$dir/parts/deeper/m-00002-of-00003.$kind" "$dir/stores/part-$kind.efs"
    pack "$dir/parts/deeper/m-00001-of-00001.$kind" "$dir/stores/part1-$kind.efs"
    [ $kind = gguf ] || continue
    pack "$dir/parts" "$dir/stores/parts.efs" # each GGUF file has separate tensor names
    for part in 00001-of-00003 00002-of-00003 00003-of-00003 001-of-2 002-of-2; do
        mv "$dir/parts/deeper/m-$part.gguf" "$dir/aside"
        fails 1 "$dir/parts" "$dir/stores/x.efs"
        grep -q "deeper/m-$part.gguf is missing, one of [23] parts" "$dir/err" ||
            complain "without $part: $(cat "$dir/err")"
        mv "$dir/aside" "$dir/parts/deeper/m-$part.gguf"
    done
done
hub="$dir/hub/models--A--B é"
mkdir -p "$hub/blobs" "$hub/refs" "$hub/snapshots/0a1b" && echo -n 0a1b >"$hub/refs/main"
for file in "$dir/model-1"/*.*; do
    cp "$file" "$hub/blobs/$(basename "$file" | cksum | cut -d' ' -f1)"
    ln -s "../../blobs/$(basename "$file" | cksum | cut -d' ' -f1)" "$hub/snapshots/0a1b/$(basename "$file")"
done
pack "$hub/snapshots/0a1b" "$dir/stores/hub.efs"
pack "$hub" "$dir/stores/hub whole.efs"
[ "$(stat -c %s "$dir/stores/hub whole.efs")" -lt $(($(stat -c %s "$dir/stores/hub.efs") + 65536)) ] || complain "a cache: stored twice"
rm "$hub/snapshots/0a1b/model-00002-"*
fails 1 "$hub/snapshots/0a1b" "$dir/stores/x.efs"
grep -q ": model-00002-of-.* is missing" "$dir/err" || complain "a cache that is not whole: $(cat "$dir/err")"

# Several names of one file are stored once
mkdir -p "$dir/par/x/snapshots/0000" "$dir/par/x/snapshots/0a1b" "$dir/two/a" "$dir/two/b" "$dir/one"
"$python" - "$dir/weights" <<'END' || complain "weights of 2 MiB"
import sys
head = b'{"w":{"dtype":"BF16","shape":[1048576],"data_offsets":[0,2097152]}}'
open(sys.argv[1], "wb").write(len(head).to_bytes(8, "little") + head + bytes(2 << 20))
END
for revision in 0000 0a1b; do ln -s "$dir/weights" "$dir/par/x/snapshots/$revision/model.safetensors"; done
for name in a b; do ln "$dir/weights" "$dir/two/$name/model.safetensors"; done
for name in m1 m2; do ln -s ../weights "$dir/one/$name.safetensors"; done
for source in par two one; do
    pack --codec=raw "$dir/$source" "$dir/stores/$source names.efs"
    [ "$(stat -c %s "$dir/stores/$source names.efs")" -lt 2200000 ] || complain "$source: stored twice"
done
mkdir "$dir/one/a" "$dir/one/b" && truncate -s 2M "$dir/one/a/vocabulary.json" # two parts of a model may share one
ln -s ../a/vocabulary.json "$dir/one/b/"
pack "$dir/one" "$dir/stores/one file.efs"

# A file that only an index names; a broken index is packed as a plain file
mkdir -p "$dir/index/deeper"
cp "$dir/model-1/model-00001-of-"*.safetensors "$dir/index/deeper/m1.safetensors"
cp "$dir/model-1/model-00002-of-"*.safetensors "$dir/index/deeper/m3.safetensors"
index="$dir/index/deeper/model.safetensors.index.json"
echo '{"weight_map":{"a":"m1.safetensors","b":"m2.safetensors","c":"m3.safetensors"}}' >"$index"
fails 1 "$dir/index" "$dir/stores/x.efs"
grep -q ": deeper/m2.safetensors is missing, which deeper/model.safetensors.index.json names" "$dir/err" ||
    complain "what an index names: $(cat "$dir/err")"
pack --any "$dir/index" "$dir/stores/index.efs"
n=0
for text in '' '{' '[]' '7' '{"weight_map":7}' '{"weight_map":{"a":7,"b":null,"c":["m2.safetensors"]}}' \
    '{"weight_map":{"a":"m1.safetensors","b":"m3.safetensors"}}' '{"weight_map":{"a":"m2.safetensors"}'; do
    n=$((n + 1))
    printf %s "$text" >"$index"
    pack "$dir/index" "$dir/stores/index $n.efs"
done
for name in '' ../m2.safetensors x/m2.safetensors /m2.safetensors ..; do
    printf '{"weight_map":{"a":"%s"}}' "$name" >"$index"
    fails 1 "$dir/index" "$dir/stores/x.efs"
    grep -q 'which deeper/model.safetensors.index.json names' "$dir/err" || complain "\"$name\": $(cat "$dir/err")"
done
rm "$index"
echo '{"weight_map":{"a":"pytorch_model.bin"}}' >"$dir/index/pytorch_model.bin.index.json" # weights of another format
pack "$dir/index" "$dir/stores/index bin.efs"
mkdir "$dir/capital"
cp "$dir/model-1/model-00001-of-"*.safetensors "$dir/capital/Model-00001-OF-00002.safetensors"
fails 1 "$dir/capital" "$dir/stores/x.efs"
grep -q ": Model-00002-OF-00002.safetensors is missing" "$dir/err" || complain "in capitals: $(cat "$dir/err")"

printf '\377\377\0\0\0\0\0\0{' >"$dir/cut.safetensors"
fails 1 "$dir/cut.safetensors" "$dir/stores/x.efs"
grep -q 'is past the end of the file' "$dir/err" || complain "a file that was cut: $(cat "$dir/err")"
fails 1 Qwen/Qwen3-30B-A3B "$dir/x.efs"
grep -q 'hf download Qwen/Qwen3-30B-A3B' "$dir/err" || complain "the name of a model: $(cat "$dir/err")"
printf 'GGUF\3\0\0\0\1' >"$dir/dense/bad.gguf"
fails 1 "$dir/dense" "$dir/stores/x.efs"
[ ! -e "$dir/stores/x.efs" ] || complain "a failed run made a store"

# Nothing is left when it is interrupted or the disk is full
mkdir "$dir/large" "$dir/into"
truncate -s 64G "$dir/large/zeros.bin" # holes: no disk space, but seconds of work
for signal in INT TERM HUP; do
    signalled $signal 0.2 "$mkexpertfs" -q --any "$dir/large" "$dir/into/x.efs" 2>"$dir/err"
    status=$?
    [ $status = 130 ] || complain "SIG$signal: exit $status"
    grep -q interrupted "$dir/err" || complain "SIG$signal: $(cat "$dir/err")"
    [ "$(ls -A "$dir/into")" = "" ] || complain "SIG$signal left $(ls -A "$dir/into")"
done
full_disk() { # in a separate mount namespace
    # shellcheck disable=SC2016
    unshare "$@" bash -c 'mount -t tmpfs -o size=300K none "$3" && { "$1" -q "$2" "$3/x.efs" 2>"$4"
        echo "exit $?, left: $(ls -A "$3")"; }' _ "$mkexpertfs" "$dir/model-1" "$dir/into" "$dir/err" 2>/dev/null
}
if result=$(full_disk -m) || result=$(full_disk -rm); then
    [ "$result" = "exit 1, left: " ] || complain "full disk: $result"
    grep -q 'No space left.*may take' "$dir/err" || complain "full disk: $(cat "$dir/err")"
    grep -q -- '--reclaim packs' "$dir/err" || complain "full disk, no way out: $(cat "$dir/err")"
else
    echo "no mount namespace here: the full disk is not tested"
fi
[ $bad = 0 ] && echo "mkexpertfs: well"
exit $bad
