# shellcheck shell=bash disable=SC2034 # tests use the variables set here
# tools.sh - shared by the tests of tools; sourced from the top of the checkout with the programs that the test needs:
#   . tests/tools/tools.sh mkmodel expertctl
# Sets $build, the programs' paths under their names, $python, $dir (removed at the end of the test) and bad=0; the test
# ends with: exit $bad
build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
python=${PYTHON:-/usr/bin/python3}
mkmodel=$build/mkmodel mkexpertfs=$build/mkexpertfs expertctl=$build/expertctl moe_replay=$build/moe-replay expertfs=$build/expertfs
for program; do
    [ -x "$build/$program" ] || { echo "FAILED: $build/$program is not built"; exit 1; }
done
dir=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' TERM INT
bad=0
complain() { echo "FAILED: $*"; bad=1; }
ended() { # WHAT GOT WANT: checks the exit status, and that $dir/err has a message if it is not 0
    [ "$2" = "$3" ] || complain "$1: exit $2, not $3: $(cat "$dir/err")"
    [ "$3" = 0 ] || [ -s "$dir/err" ] || complain "$1: no message"
}
ran() { # EXIT PROGRAM ARGUMENT...: output in $dir/out, messages in $dir/err
    "${@:2}" >"$dir/out" 2>"$dir/err"
    ended "${2##*/} ${*:3}" $? "$1"
}
says() { grep -q -- "$1" "$dir/out" || complain "no '$1' in: $(cat "$dir/out")"; }
warns() { grep -q -- "$1" "$dir/err" || complain "no '$1' in: $(cat "$dir/err")"; }
signalled() { "$python" tests/tools/signalled.py "$@"; } # SIGNAL SECONDS PROGRAM ARGUMENT...
make_trace() { "$python" tests/tools/make_trace.py "$dir/$1.route" "${@:2}" || exit 1; } # NAME SEED SEQUENCES TOKENS ...
