#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The shells complete what the programs take: bash by calling what it would call, fish by asking it, zsh by loading it.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
wrong() { echo "$*"; bad=1; }
for program in expertfs expertctl mkexpertfs moe-replay; do
    for shell in bash zsh fish; do
        tools/packaging/completions $shell "$BUILD/$program" >"$work/$program.$shell" || wrong "$program: no completion for $shell"
    done
done

expect() { # LINE WORD...: bash completes the line to these words, and maybe others
    local line=$1 program=${1%% *} word
    shift
    COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    read -ra COMP_WORDS <<<"$(sed 's/=/ = /g' <<<"$line")"
    [[ $line != *' ' && $line != *= ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    compopt() { :; }
    "_$program"
    for word; do
        [[ " ${COMPREPLY[*]} " == *" $word "* ]] || wrong "bash, '$line': no '$word' in: ${COMPREPLY[*]}"
    done
}
for program in expertfs expertctl mkexpertfs moe-replay; do
    # shellcheck disable=SC1090
    . "$work/$program.bash"
done
expect 'expertfs --fore' --foreground
expect 'expertfs -' -f -d --version
expect 'expertfs -o po' policy=lru pools=
expect 'expertfs -o pol' policy=zipmoe policy=lru
expect 'expertfs -o policy=l' lru lfu
expect 'expertfs -o policy=' zipmoe lru
expect 'expertfs -o warm,po' warm,policy=lru warm,pools=
# bash replaces what is behind the last "="
expect 'expertfs -o policy=lru,no' lru,nopassthrough lru,noexec
expect 'expertfs -o policy=lru,po' lru,policy=lfu lru,pools=
expect 'expertfs -o policy=lru,goal=m' makespan
expect 'expertctl ' info verify set top run estimate doctor
expect 'expertctl run -' -o --options
expect 'expertctl estimate --' --ram --ctx --json
expect 'expertctl ver' verify
expect 'expertctl verify --d' --decode
expect 'mkexpertfs --re' --reclaim --resume
expect 'moe-replay --bu' --budget

if command -v fish >/dev/null; then
    asked() { # LINE WORD
        HOME=$work fish -N -c "source '$work/${1%% *}.fish'; complete -C '$1'" 2>&1 | cut -f 1 | grep -qxF -- "$2" || wrong "fish, '$1': no '$2'"
    }
    asked 'expertfs --fore' --foreground
    asked 'expertctl ver' verify
    asked 'expertctl verify --d' --decode
    asked 'expertfs -o pol' policy=lru
    asked 'mkexpertfs --re' --reclaim
fi
if command -v zsh >/dev/null; then
    for program in expertfs expertctl mkexpertfs moe-replay; do
        zsh -n "$work/$program.zsh" || wrong "zsh: $program"
        cp "$work/$program.zsh" "$work/_$program"
    done
    named=$(zsh -fc "fpath=('$work' \$fpath); autoload -Uz compinit; compinit -D -u; print \$_comps[expertfs] \$_comps[expertctl]")
    [ "$named" = "_expertfs _expertctl" ] || wrong "zsh: what completes is '$named'"
fi
exit $bad
