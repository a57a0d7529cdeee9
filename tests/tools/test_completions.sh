#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completions for the shells: bash by calling its function, fish with `complete -C`, zsh by loading the file.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
mount=
trap '[ -z "$mount" ] || fusermount3 -uzq "$mount"; rm -rf "$work"' EXIT
export XDG_DATA_HOME=$work/data EXPERTFS_STATE=$work/state
bad=0
wrong() { echo "$*"; bad=1; }
PATH=$BUILD:$PATH
. tools/packaging/completions/bash

expect() { # LINE WORD...: bash completes the line to these words, and possibly further ones
    local line=$1 program=${1%% *} word
    shift
    COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    read -ra COMP_WORDS <<<"${line//=/ = }"
    [[ $line != *' ' && $line != *= ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    compopt() { :; }
    _expertfs "$program"
    for word; do
        [[ " ${COMPREPLY[*]} " == *" $word "* ]] || wrong "bash, '$line': no '$word' in: ${COMPREPLY[*]}"
    done
}
expect 'expertfs --fore' --foreground
expect 'expertfs -' -f -d --version
expect 'expertfs -o pre' prefetch= prealloc
expect 'expertfs -o budget=1G,pref' 1G,prefetch=
expect 'expertfs -o po' policy= pools=
expect 'expertctl ' info verify set up down doctor
expect 'expertctl up -' -o --options
expect 'expertctl verify -' -q --quiet -t
expect 'expertctl ver' verify
expect 'expertctl verify --d' --decode
expect 'expertctl up -o pre' prefetch= prealloc
expect 'expertctl up -o budget=1G,pref' 1G,prefetch=
expect 'mkexpertfs --re' --reclaim --resume
expect 'moe-replay --bu' --budget

# A model with a name, and its mount
[ -c /dev/fuse ] && mkmodel -F mixtral -l 2 -e 4 -d 128 -i 256 --vocab 500 "$work/tiny-model" >/dev/null &&
    expertctl up -o budget=64M "$work/tiny-model" >/dev/null 2>&1 && mount=$work/data/expertfs/tiny-model
if [ -n "$mount" ]; then
    for command in up rm info verify unpack profile down status warmup log doctor get set; do
        expect "expertctl $command tiny-m" tiny-model
    done
    for command in down status warmup log doctor get set; do expect "expertctl $command $work/data/e" "$mount"; done
    expect "expertctl get $mount pol" policy
    expect "expertctl get tiny-model eff" effective_budget
    expect "expertctl set tiny-model pol" policy=
    expect "expertctl set $mount policy=lru go" goal=
    expect "expertctl up $work/tiny-mod" "$work/tiny-model"
fi

if command -v fish >/dev/null; then
    asked() { # LINE WORD
        HOME=$work fish -N -c "source tools/packaging/completions/fish; complete -C '$1'" 2>&1 | cut -f 1 | grep -qxF -- "$2" || wrong "fish, '$1': no '$2'"
    }
    asked 'expertfs --fore' --foreground
    asked 'expertctl ver' verify
    asked 'expertctl verify --d' --decode
    asked 'expertfs -o pref' prefetch=
    asked 'expertfs -o budget=1G,pref' budget=1G,prefetch=
    asked 'mkexpertfs --re' --reclaim
    asked 'expertctl up -o budget=1G,pref' budget=1G,prefetch=
    if [ -n "$mount" ]; then
        asked 'expertctl up tiny-m' tiny-model
        asked "expertctl down $work/data/e" "$mount"
        asked "expertctl get $mount pol" policy
        asked "expertctl set tiny-model pol" policy=
    fi
fi
if command -v zsh >/dev/null; then
    cp tools/packaging/completions/zsh "$work/_expertfs"
    named=$(zsh -fc "fpath=('$work' \$fpath); autoload -Uz compinit; compinit -D -u; print \$_comps[expertfs] \$_comps[expertctl]")
    [ "$named" = "_expertfs _expertfs" ] || wrong "zsh: what completes is '$named'"
    zsh_says() { # LINE WORD: prints the words of a terminal after Tab
        zsh -fc 'zmodload zsh/zpty; zpty shell zsh -fi; zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -D -u; cd /; bindkey \"^I\" complete-word; print rea\\dy"
            zpty -r shell text "*ready*"; zpty -wn shell "$2"$'"'\t'"'; for try in {1..1200}; do zpty -rt shell more && text+=$more; [[ $text != *$3* ]] || exit 0; sleep 0.2; done; print -r -- $text; exit 1' \
            zsh "$work" "$1" "$2" >"$work/zsh" 2>&1 || wrong "zsh, '$1': no '$2' in $(tail -c 300 "$work/zsh")"
    }
    zsh_says 'expertctl verify --dec' --decode
    zsh_says 'expertctl up -o prefe' prefetch
    if [ -n "$mount" ]; then
        zsh_says 'expertctl status tiny-mo' tiny-model
        zsh_says 'expertctl set tiny-model polic' policy=
    fi
fi
[ -z "$mount" ] || expertctl down "$mount"
exit $bad
