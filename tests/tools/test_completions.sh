#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completions for the shells: bash by calling its function, fish with `complete -C`, zsh by loading the file.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
expect 'expertctl ' info verify set up down doctor
expect 'expertctl up -' -o --options
expect 'expertctl verify -' -q --quiet -t
expect 'expertctl ver' verify
expect 'expertctl verify --d' --decode
expect 'mkexpertfs --re' --reclaim --resume
expect 'moe-replay --bu' --budget

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
fi
if command -v zsh >/dev/null; then
    cp tools/packaging/completions/zsh "$work/_expertfs"
    named=$(zsh -fc "fpath=('$work' \$fpath); autoload -Uz compinit; compinit -D -u; print \$_comps[expertfs] \$_comps[expertctl]")
    [ "$named" = "_expertfs _expertfs" ] || wrong "zsh: what completes is '$named'"
fi
exit $bad
