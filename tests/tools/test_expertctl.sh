#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# expertctl info, verify, unpack: output, exit statuses, nothing left behind.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs expertctl mkmodel
run() { ran "$1" "$expertctl" "${@:2}"; } # EXIT ARGUMENT...
damage() { # OFFSET: flips one bit of the store, or restores it
    "$python" -c 'import sys
f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2])); b = f.read(1)[0]; f.seek(-1, 1); f.write(bytes([b ^ 8]))' \
        "$dir/m.efs" "$1"
}
"$mkmodel" --preset=tiny-qwen3-moe "$dir/model" && "$mkexpertfs" -q "$dir/model" "$dir/m.efs" || exit 1
size=$(stat -c %s "$dir/m.efs")

# Usage; --help and unknown options: man/test_options.py, numbers: test_numbers.py
for command in info verify unpack; do
    run 2 $command
    run 2 $command a b c
done
run 0 --version
says '^expertctl (expertfs) [0-9]'
run 0 version
says '^expertctl (expertfs) [0-9]'
run 2
run 2 foo # nothing is near
warns 'lists the commands'
run 2 nonsense
warns 'unknown command "nonsense"'
for word in 'mount expertctl' 'umount expertctl' 'unmount expertctl' 'run expertctl' 'list expertctl' 'pack mkexpertfs' 'replay moe-replay'; do
    run 2 "${word% *}" a b # commands of other tools: the message names the right program
    warns "no command \"${word% *}\": \`${word#* }"
done
run 0 help
says 'COMMAND --help explains one'
run 0 help verify
says 'Usage: expertctl verify'
run 2 help nonsense
run 2 verify --threads 0 "$dir/m.efs"
warns '[-]-threads 0: a number from 1 to 1024'
run 2 unpack "$dir/m.efs"
warns 'DIR is needed'
run 2 info "$dir/m.efs" more
warns 'more: more arguments than it takes'

# info
run 0 info "$dir/m.efs"
for word in 'version 2' 'family' 'experts' 'cascade' 'BF16'; do says "$word"; done
run 0 info --json "$dir/m.efs"
"$python" - "$dir/out" "$size" <<'P' || complain "info --json: $(cat "$dir/out")"
import json, sys
info = json.load(open(sys.argv[1]))
assert info["store_bytes"] == int(sys.argv[2]) and info["experts"] > 0 and info["version"] == 2
assert sum(row["raw_bytes"] for row in info["report"]["rows"]) == info["source_bytes"]
assert sum(codec["raw_bytes"] for codec in info["codecs"].values()) == info["source_bytes"]
P
"$expertctl" info --json "$dir/model" >"$dir/checkpoint" || complain "info of a checkpoint: exit $?"
"$python" - "$dir/out" "$dir/checkpoint" <<'P' || complain "info of a checkpoint: $(cat "$dir/checkpoint")"
import json, sys
store, checkpoint = (json.load(open(path)) for path in sys.argv[1:])
for name in "files", "experts", "layers", "source_bytes", "expert_raw_bytes", "other_bytes":
    assert checkpoint[name] == store[name], name
for name in "expert_coded_bytes", "budget_bytes":
    assert abs(checkpoint[name] / store[name] - 1) < 0.05, name
assert store["expert_raw_bytes"] + store["other_bytes"] == store["source_bytes"]
P
run 0 info "$dir/model"
for word in 'checkpoint, not packed' 'experts  *[0-9]* in [0-9]* layers, .*, about .* coded' '^other ' '^budget .* holds all experts'; do
    says "$word"
done
run 1 info "$dir/missing"
run 1 info "$dir/model/config.json"
mkdir "$dir/parts" && cp "$(ls "$dir"/model/*.safetensors | head -n 1)" "$dir/parts/model-00002-of-00002.safetensors"
run 1 info "$dir/parts"
warns 'model-00001-of-00002.safetensors is missing'

# verify: one line for each damaged chunk, the place named
run 0 verify "$dir/m.efs"
says ': ok: '
run 0 verify -q --decode -t 2 "$dir/m.efs"
[ ! -s "$dir/out" ] || complain "verify -q printed: $(cat "$dir/out")"
damage 4096
run 1 verify "$dir/m.efs"
[ "$(wc -l <"$dir/out")" = 1 ] || complain "one damaged chunk: $(cat "$dir/out")"
grep -q '1 damaged chunk$' "$dir/err" || complain "damage without a way out: $(cat "$dir/err")"
says 'chunk at store offset 4096'
damage $((size / 2))
run 1 verify --decode "$dir/m.efs"
[ "$(wc -l <"$dir/out")" = 2 ] || complain "two damaged chunks: $(cat "$dir/out")"
warns '2 damaged chunks'

# unpack: nothing of a damaged store; all of an intact one; existing files only with --force
run 1 unpack "$dir/m.efs" "$dir/back"
[ ! -e "$dir/back" ] || complain "a damaged store left $(find "$dir/back")"
damage 4096
damage $((size / 2))
run 0 unpack "$dir/m.efs" "$dir/back"
diff -r "$dir/model" "$dir/back" || complain "other files came back"
run 1 unpack "$dir/m.efs" "$dir/back"
warns '[-]-force'
echo other >"$dir/back/config.json"
run 0 unpack --force -q "$dir/m.efs" "$dir/back"
diff -r "$dir/model" "$dir/back" || complain "--force: other files came back"
run 1 unpack "$dir/m.efs" "$dir/missing/deep"
warns "missing/deep: cannot make directory"

# unpack on a full disk: nothing is left, and the needed space is reported; files that --force would replace stay
full_disk() { # in a separate mount namespace; SIZE of the disk
    # shellcheck disable=SC2016
    unshare -m bash -c 'mount -t tmpfs -o size="$5" none "$3" && mkdir "$3/kept" && echo 1 >"$3/kept/config.json" &&
        { for to in new kept; do "$1" unpack --force "$2" "$3/$to" 2>>"$4"; echo "exit $?"; done
        (cd "$3" && find . -type f && cat kept/config.json); }' _ "$expertctl" "$dir/m.efs" "$dir/full" "$dir/err" "$1"
}
mkdir "$dir/full"
for room in 16K 300K 2M; do
    rm -f "$dir/err"
    if result=$(full_disk $room 2>/dev/null); then
        [ "$(echo "$result" | tr "\n" " ")" = "exit 1 exit 1 ./kept/config.json 1 " ] || complain "unpack, a disk of $room: $result"
        [ "$(grep -c 'no room on the disk: the files of .*m.efs take 3 MiB, . MiB are free' "$dir/err")" = 2 ] ||
            complain "unpack, a disk of $room: $(cat "$dir/err")"
    else
        echo "no mount namespace here: unpack on a full disk is not tested"
        break
    fi
done
truncate -s -4096 "$dir/m.efs"
run 1 verify "$dir/m.efs"
warns 'cut'

# Interrupted: exit 130, nothing left
mkdir "$dir/large"
truncate -s 4G "$dir/large/zeros.bin"
"$mkexpertfs" -q --any --codec lz4 "$dir/large" "$dir/large.efs" || complain "4 GiB of zeros: exit $?"
interrupted() { # COMMAND...: SIGINT after shorter and shorter times, until it arrives before the end of the work
    for delay in 0.1 0.05 0.03 0.02 0.01 0 0 0 0 0; do
        signalled INT $delay "$expertctl" "$@" 2>/dev/null
        status=$?
        [ $status != 0 ] && break
        rm -rf "$dir/zeros"
    done
    [ $status = 130 ] || complain "interrupted $1: exit $status"
}
interrupted verify -q --decode -t 1 "$dir/large.efs"
interrupted unpack -q -t 1 "$dir/large.efs" "$dir/zeros"
[ ! -e "$dir/zeros" ] || complain "interrupted unpack left $(find "$dir/zeros")"
mkdir "$dir/state"
"$mkexpertfs" -q "$dir/model" "$dir/measured.efs" || complain "packing again: exit $?"
EXPERTFS_STATE=$dir/state signalled INT 0.5 "$expertctl" profile --seconds 60 "$dir/measured.efs" >"$dir/out" 2>"$dir/err"
[ $? = 130 ] && [ "$(cat "$dir/err")" = "expertctl: interrupted" ] || complain "interrupted profile: $(cat "$dir/err")"
[ ! -s "$dir/out" ] && [ -z "$(ls -A "$dir/state")" ] || complain "interrupted profile left $(ls -A "$dir/state")"

# Options of one line of the manual's synopsis are taken together with --json
"$python" - "$expertctl" <<'END' || complain "synopsis: see above"
import re, subprocess, sys
text = open("man/expertctl.1").read()
bad = tried = 0
for entry in text[text.index(".Sh SYNOPSIS"):text.index(".Sh DESCRIPTION")].split("\n.Nm\n")[1:]:
    json = [line for line in entry.splitlines() if "Fl -json" in line]
    for line in entry.splitlines() if json else []:
        for letters, value in re.findall(r"Fl ([a-z]+)( Ar)?", "" if "|" in line and line in json else line):
            for letter in letters:
                words = [entry.split()[1], "--json", f"-{letter}", *(["1"] if value else [])]
                said = subprocess.run([sys.argv[1], *words], capture_output=True, text=True, stdin=subprocess.DEVNULL).stderr
                tried += 1
                if "--json goes" in said:
                    bad = print(" ".join(words), said) or 1
sys.exit(bad or tried < 8)
END
[ $bad = 0 ] && echo "expertctl: well"
exit $bad
