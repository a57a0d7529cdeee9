#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mkexpertfs: every kind of checkpoint by every codec, options, exit codes, what it prints, nothing left behind.
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
    "$mkmodel" -q $options "$dir/model-$n" || complain "mkmodel $options"
    pack --verify "$dir/model-$n" "$dir/stores/$n.efs"
    "$expertctl" unpack -q "$dir/stores/$n.efs" "$dir/back-$n" || complain "unpack of $options"
    diff -r "$dir/model-$n" "$dir/back-$n" || complain "$options: other files came back"
    [ "$("$expertctl" info --json "$dir/stores/$n.efs" | field experts)" -gt 0 ] || complain "$options: no experts"
done
rm -rf "$dir"/back-*

# The codec that was asked for is used, and the bytes are the same ones
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

# What it prints
text=$("$mkexpertfs" -f "$dir/model-2" "$dir/stores/2.efs" 2>"$dir/err") || complain "with a table: exit $?"
for word in class entropy expert dense other BF16 qwen; do
    grep -q "$word" <<<"$text" || complain "the table has no '$word': $text"
done
[ -z "$(sed "s,$dir/stores/,," <<<"$text" | awk 'length > 80')" ] || complain "what it prints does not fit 80 columns: $text"
[ "$("$mkexpertfs" -q -f "$dir/model-2" "$dir/stores/2.efs" 2>&1)" = "" ] || complain "--quiet is not"
json=$("$mkexpertfs" --json -f "$dir/model-2" "$dir/stores/2.efs" 2>/dev/null) || complain "--json: exit $?"
[ "$(field store_bytes <<<"$json")" = "$(stat -c %s "$dir/stores/2.efs")" ] || complain "--json: $json"
[ "$(field rows.0.class <<<"$json")" = expert ] || complain "--json: $json"
mkdir "$dir/dense" && echo text >"$dir/dense/a.txt"
cp "$dir/model-2/model-00001-of-"*.safetensors "$dir/dense/model.safetensors"
sed -i 's/\.experts\./.unknown./g' "$dir/dense/model.safetensors" # as long: offsets stay
"$mkexpertfs" "$dir/dense" "$dir/stores/dense.efs" 2>&1 >/dev/null | grep -q 'note: .*dense' || complain "no notice of an unknown family"
"$mkexpertfs" --help | grep -q -- --shard-size || complain "--help"
"$mkexpertfs" --version | grep -q '^mkexpertfs (expertfs) [0-9]' || complain "--version"
if command -v script >/dev/null; then # on a terminal it draws a bar
    script -qec "$(printf '%q ' "$mkexpertfs" -f "$dir/model-2" "$dir/stores/2.efs")" "$dir/typescript" >/dev/null </dev/null
    grep -q '\[###' "$dir/typescript" || complain "no bar on a terminal: $(cat "$dir/typescript")"
fi

# The same bytes for any number of threads, and in another directory
mv "$dir/model-3" "$dir/moved"
pack -t 1 "$dir/moved" "$dir/stores/one.efs"
pack -t 7 "$dir/moved/" "$dir/stores/seven.efs"
cmp "$dir/stores/one.efs" "$dir/stores/seven.efs" || complain "-t 7 gives other bytes"
cmp "$dir/stores/one.efs" "$dir/stores/3.efs" || complain "another place gives other bytes"

# Exit codes
for wrong in "" a "a b c" "--codec=gzip a b" "--threads=0 a b" "--threads=x a b" "--shard-size=1 a b" \
    "--shard-size=20000 a b" "--shard-size=16M a b" "--unknown a b"; do
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
mkdir "$dir/nonsense" && echo abc >"$dir/nonsense/a.txt"
for source in "$dir/nonsense" "$dir/nonsense/a.txt"; do
    fails 1 "$source" "$dir/stores/x.efs"
    grep -q 'no weights found.*--any' "$dir/err" || complain "$source: $(cat "$dir/err")"
done
pack --any "$dir/nonsense" "$dir/stores/any.efs"
fails 1 "$dir/gone" "$dir/stores"
grep -q 'comes first, then the store' "$dir/err" || complain "the other way around: $(cat "$dir/err")"

# A checkpoint that did not come whole, one part alone, and the cache of a hub
for kind in safetensors gguf; do # parts are told by their names
    rm -rf "$dir/parts"
    mkdir -p "$dir/parts/deeper"
    "$mkmodel" -q --preset=tiny-mixtral --format=$kind --shard-size=100G "$dir/parts/made" || complain "mkmodel $kind: exit $?"
    mv "$dir/parts/made/"model*.$kind "$dir/parts/one.$kind"
    rm -r "$dir/parts/made"
    for part in 00001-of-00003 00002-of-00003 00003-of-00003 001-of-2 002-of-2 00001-of-00001 0-of-9 5-of-4; do
        ln "$dir/parts/one.$kind" "$dir/parts/deeper/m-$part.$kind"
    done
    fails 1 "$dir/parts/deeper/m-00002-of-00003.$kind" "$dir/stores/x.efs"
    grep -q "is one part of 3: pack the folder" "$dir/err" || complain "one part of three: $(cat "$dir/err")"
    pack --any "$dir/parts/deeper/m-00002-of-00003.$kind" "$dir/stores/part-$kind.efs"
    pack "$dir/parts/deeper/m-00001-of-00001.$kind" "$dir/stores/part1-$kind.efs"
    [ $kind = gguf ] || continue
    pack "$dir/parts" "$dir/stores/parts.efs" # of GGUF files each has its own names of tensors
    for part in 00001-of-00003 00002-of-00003 00003-of-00003 001-of-2 002-of-2; do
        mv "$dir/parts/deeper/m-$part.gguf" "$dir/aside"
        fails 1 "$dir/parts" "$dir/stores/x.efs"
        grep -q "did not come whole: deeper/m-$part.gguf is missing; --any" "$dir/err" ||
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
fails 1 "$hub" "$dir/stores/x.efs"
grep -q "has each file twice.* pack $hub/snapshots/0a1b; --any" "$dir/err" || complain "the cache of a hub: $(cat "$dir/err")"
pack "$hub/snapshots/0a1b" "$dir/stores/hub.efs"
pack --any "$hub" "$dir/stores/hub twice.efs"
rm "$hub/snapshots/0a1b/model-00002-"*
fails 1 "$hub/snapshots/0a1b" "$dir/stores/x.efs"
grep -q "did not come whole: model-00002-of-.* is missing" "$dir/err" || complain "a cache that is not whole: $(cat "$dir/err")"
fails 1 "$dir/stores/2.efs" "$dir/stores/x.efs"
grep -q 'is a store already' "$dir/err" || complain "a store into a store: $(cat "$dir/err")"
printf '\377\377\0\0\0\0\0\0{' >"$dir/cut.safetensors"
fails 1 "$dir/cut.safetensors" "$dir/stores/x.efs"
grep -q 'did not come whole' "$dir/err" || complain "a file that was cut: $(cat "$dir/err")"
fails 1 Qwen/Qwen3-30B-A3B "$dir/x.efs"
grep -q 'hf download Qwen/Qwen3-30B-A3B' "$dir/err" || complain "the name of a model: $(cat "$dir/err")"
printf 'GGUF\377\377\377\377' >"$dir/dense/bad.gguf"
fails 1 "$dir/dense" "$dir/stores/x.efs"
[ ! -e "$dir/stores/x.efs" ] || complain "a failed run made a store"

# Nothing is left when it is interrupted or the disk is full
mkdir "$dir/large" "$dir/into"
truncate -s 64G "$dir/large/zeros.bin" # holes: no disk, but seconds of work
for signal in INT TERM HUP; do
    timeout --preserve-status -s $signal 0.4 "$mkexpertfs" -q --any "$dir/large" "$dir/into/x.efs" 2>"$dir/err"
    status=$?
    [ $status = 130 ] || complain "SIG$signal: exit $status"
    grep -q interrupted "$dir/err" || complain "SIG$signal: $(cat "$dir/err")"
    [ "$(ls -A "$dir/into")" = "" ] || complain "SIG$signal left $(ls -A "$dir/into")"
done
full_disk() { # in a mount namespace of its own
    # shellcheck disable=SC2016
    unshare "$@" bash -c 'mount -t tmpfs -o size=300K none "$3" && { "$1" -q "$2" "$3/x.efs" 2>"$4"
        echo "exit $?, left: $(ls -A "$3")"; }' _ "$mkexpertfs" "$dir/model-1" "$dir/into" "$dir/err" 2>/dev/null
}
if result=$(full_disk -m) || result=$(full_disk -rm); then
    [ "$result" = "exit 1, left: " ] || complain "full disk: $result"
    grep -q 'No space left.*may take' "$dir/err" || complain "full disk: $(cat "$dir/err")"
else
    echo "no mount namespace here: the full disk is not tested"
fi
[ $bad = 0 ] && echo "mkexpertfs: well"
exit $bad
