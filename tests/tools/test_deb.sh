#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The output of tools/packaging/deb: one line per package; for a failed build the end of its log and the log's path. The
# build is a script here; the packages are tested by hand.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh
version=$(sed -n 's/^VERSION := //p' Makefile)
mkdir "$dir/bin"
cat >"$dir/bin/dpkg-buildpackage" <<'EOF'
#!/bin/bash
[ -f debian/control ] && [ -f Makefile ] || exit 2
seq -f 'line %g' 1000
[ ! -e "${0%/*}/fails" ] || { echo "the compiler stopped" >&2; exit 2; }
touch ../one.deb ../two.deb
EOF
chmod +x "$dir/bin/dpkg-buildpackage"
PATH=$dir/bin:$PATH
unset V
export EVERY=1
ran 0 tools/packaging/deb "$dir/deb" "$version"
[ "$(cat "$dir/out")" = "$dir/deb/one.deb
$dir/deb/two.deb" ] || complain "a line a package: $(head -5 "$dir/out")"
grep -q line "$dir/err" && complain "the build is shown: $(head -5 "$dir/err")"
[ "$(grep -c line "$dir/deb/build.log")" = 1000 ] || complain "the log is not whole"
cat >>"$dir/bin/dpkg-buildpackage" <<'EOF'
[ -z "${WAIT_FOR:-}" ] || { echo 'gcc -c -o a.o'; until grep -q '1 of [0-9]* files' "$WAIT_FOR"; do sleep 0.1; done; }
EOF
WAIT_FOR=$dir/err ran 0 tools/packaging/deb "$dir/deb" "$version"
warns 'compiling [1-9][0-9]* files'
warns '1 of [1-9][0-9]* files'
V=1 ran 0 tools/packaging/deb "$dir/deb" "$version"
says '^line 1000$'
touch "$dir/bin/fails"
ran 1 tools/packaging/deb "$dir/deb" "$version"
warns 'the compiler stopped'
warns "all that it said: $dir/deb/build.log"
[ "$(wc -l <"$dir/err")" -le 24 ] || complain "a build that fails prints $(wc -l <"$dir/err") lines"
grep -q 'line 1$' "$dir/deb/build.log" || complain "the log of a build that failed is not whole"
[ $bad = 0 ] && echo "tools/packaging/deb: well"
exit $bad
