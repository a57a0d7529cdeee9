#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The files that `make install` puts into a folder work from there, and `make uninstall` removes all of them.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build} BUILD=${BUILD#"$PWD"/} # make does not accept a path with a blank
work=$(mktemp -d "${TMPDIR:-/tmp}/expertfs-XXXXXX") # mount(8) cuts a type at its last dot
mounted=
cleanup() { [ -z "$mounted" ] || fusermount3 -u -z "$mounted"; rm -rf "$work"; }
trap cleanup EXIT
wrong() { echo "$*"; exit 1; }
for place in '/opt/a b' /opt/a,b; do
    make -s install BUILD="$BUILD" DESTDIR="$work/none" PREFIX="$place" 2>"$work/log" && wrong "PREFIX=$place was taken"
    grep -q 'neither blanks nor commas' "$work/log" && [ ! -e "$work/none" ] || wrong "PREFIX=$place: $(cat "$work/log")"
done
root="$work/a root" prefix=/opt/efs
make -s install BUILD="$BUILD" DESTDIR="$root" PREFIX=$prefix >"$work/log" 2>&1 || { cat "$work/log"; wrong "make install failed"; }
for file in bin/expertfs bin/mkexpertfs bin/expertctl bin/moe-replay lib/libexpertfs.so lib/pkgconfig/expertfs.pc \
    include/expertfs.h share/man/man1/expertfs.1 share/man/man1/mkmodel.1 bin/mkmodel share/expertfs/grafana.json lib/systemd/system/expertfs@.service etc/expertfs/example.conf etc/logrotate.d/expertfs \
    share/bash-completion/completions/expertctl share/zsh/site-functions/_expertfs share/fish/vendor_completions.d/mkexpertfs.fish; do
    [ -s "$root$prefix/$file" ] || wrong "$file was not installed"
done
[ "$(readlink "$root$prefix/sbin/mount.expertfs")" = $prefix/bin/expertfs ] || wrong "mount.expertfs is no link to expertfs"
grep -v '^#' "$root$prefix/etc/expertfs/example.conf" | grep -q . && wrong "a line of the sample is in effect"
unit="$root$prefix/lib/systemd/system/expertfs@.service"
grep -qx 'AssertPathExists=/etc/expertfs/%i.conf' "$unit" || wrong "starting a name that is not configured does not fail"
grep -q '@[A-Z]*@' "$unit" && wrong "the unit has a place that was not filled in"
grep -qx 'ExecReload=/bin/kill -HUP $MAINPID' "$unit" || wrong "the unit has no way to reopen its log"
if logrotate=$(PATH=$PATH:/usr/sbin command -v logrotate); then
    "$logrotate" -d -s "$work/rotated" "$root$prefix/etc/logrotate.d/expertfs" >"$work/log" 2>&1 || { cat "$work/log"; wrong "logrotate refuses the snippet"; }
    grep -q '^error' "$work/log" && { cat "$work/log"; wrong "logrotate finds an error in the snippet"; }
fi
if command -v systemd-analyze >/dev/null; then # it reads units without a running systemd
    exposure=$(systemd-analyze security --offline=true --threshold=50 "$unit" 2>&1 | grep -i overall) || wrong "the unit is more exposed than 5.0: $exposure"
fi

bin="$root$prefix/bin"
if [ -c /dev/fuse ] && [ -z "${SANITIZED:-}" ]; then
    mkdir "$work/mnt"
    "${PYTHON:-/usr/bin/python3}" "$bin/mkmodel" -F mixtral -l 2 -e 4 -d 256 -i 256 "$work/model" >/dev/null || wrong "mkmodel failed"
    "$bin/mkexpertfs" -q "$work/model" "$work/m.efs" || wrong "mkexpertfs failed"
    # the unit's command with the unit's capabilities
    printf 'STORE=%s\nMOUNTPOINT=%s\n' "$work/m.efs" "$work/mnt" >"$work/x.conf"
    command=$(sed -n 's/^ExecStart=//p' "$unit")
    caps=$(sed -n 's/^CapabilityBoundingSet=//p' "$unit" | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
    limit=()
    [ "$(id -u)" != 0 ] || limit=(setpriv --no-new-privs --bounding-set="-all,$caps")
    # shellcheck disable=SC1091,SC2016
    (. "$work/x.conf"; OPTIONS=rw; set -f; IFS=' '; args=(); for a in $command; do
        case $a in
        '${OPTIONS}') args+=("$OPTIONS") ;;
        '${STORE}') args+=("$STORE") ;;
        '${MOUNTPOINT}') args+=("$MOUNTPOINT") ;;
        "$prefix"/*) args+=("$root$a") ;;
        *) args+=("$a") ;;
        esac
    done; "${limit[@]}" "${args[@]}") >"$work/log" 2>&1 || { cat "$work/log"; wrong "the unit's command does not mount"; }
    mounted=$work/mnt
    [ "$(cat "$work/mnt/.expertfs/version" | head -1)" ] || wrong "the mount tells no version"
    (cd "$work/model" && find . -type f -print0) | while IFS= read -r -d '' f; do
        cmp "$work/model/$f" "$work/mnt/$f" || exit 1
    done || wrong "a file differs"
    fusermount3 -u "$work/mnt" || wrong "it does not unmount"
    mounted=
fi

make -s uninstall BUILD="$BUILD" DESTDIR="$root" PREFIX=$prefix || wrong "make uninstall failed"
left=$(find "$root" ! -type d; find "$root$prefix" -mindepth 1)
[ -z "$left" ] || wrong "make uninstall left: $left"

# A PREFIX without DESTDIR: programs find the library there, mount(8) the daemon. The loader's cache of this machine is
# not changed.
own=$work/own
mkdir "$work/stub"
printf '#!/bin/sh\n' >"$work/stub/ldconfig"
chmod +x "$work/stub/ldconfig"
PATH="$work/stub:$PATH" make -s install BUILD="$BUILD" PREFIX="$own" >"$work/log" 2>&1 || { cat "$work/log"; wrong "make install to an own PREFIX failed"; }
grep -q "PKG_CONFIG_PATH=$own/lib/pkgconfig" "$work/log" || { cat "$work/log"; wrong "make install does not say where the library is found"; }
if [ -z "${SANITIZED:-}" ]; then
    printf '#include <expertfs.h>\nint main(void) { return !efs_version()[0]; }\n' >"$work/x.c"
    # shellcheck disable=SC2046
    cc "$work/x.c" -o "$work/x" $(PKG_CONFIG_PATH=$own/lib/pkgconfig pkg-config --cflags --libs expertfs) || wrong "a program does not link"
    env -u LD_LIBRARY_PATH "$work/x" || wrong "a program that pkg-config's flags made does not find the library"
fi
if [ -c /dev/fuse ] && [ -z "${SANITIZED:-}" ] && [ "$(id -u)" = 0 ] && command -v mount.fuse3 >/dev/null; then
    mount -t "fuse.$own/bin/expertfs" -o budget=auto "$work/m.efs" "$work/mnt" || wrong "mount -t fuse.PATH does not mount"
    mounted=$work/mnt
    cmp "$work/model/config.json" "$work/mnt/config.json" || wrong "a file differs"
    umount "$work/mnt" || wrong "it does not unmount"
    mounted=
fi
make -s uninstall BUILD="$BUILD" PREFIX="$own" || wrong "make uninstall failed"
left=$(find "$own" -mindepth 1)
[ -z "$left" ] || wrong "make uninstall left: $left"
