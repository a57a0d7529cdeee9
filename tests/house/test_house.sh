#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The rules of the tree (README, "the map"): which rooms may include which headers, and which symbols a room may use.
set -u
cd "$(dirname "$0")/../.."
bad=0
complain() { echo "$1"; bad=1; }

quoted='include[[:space:]]*"([^"]*)"'
includes() { grep -HnE '^[[:space:]]*#[[:space:]]*include' "$@" 2>/dev/null; }
# $1 room, $2 pattern of quoted includes that are allowed in addition to the room's own
room() {
    local room=$1 allowed=$2 line file header
    while IFS= read -r line; do
        file=${line%%:*}
        [[ $line =~ $quoted ]] || continue
        header=${BASH_REMATCH[1]}
        [ -e "$(dirname "$file")/$header" ] || [ -e "$room/$header" ] || compgen -G "$room/*/$header" >/dev/null && continue
        [[ $header =~ ^($allowed)$ ]] || complain "$line: $room/ must not use it"
    done < <(includes $(find "$room" -name '*.[ch]'))
}
engine_private='none'
room kernels "$engine_private"
room sched "$engine_private"
room engine '(cuda/)?[a-z_0-9]+\.h' # kernels/ and sched/ headers: checked below by name
for header in $(includes engine/*.h engine/*/*.[ch] | sed -nE 's/.*"([^"]*)".*/\1/p' | sort -u); do
    [ -e "engine/$header" ] || compgen -G "engine/*/$header" >/dev/null || [ -e "kernels/$header" ] || compgen -G "sched/*/$header" >/dev/null || complain "engine/ uses $header"
done
# $1 engine, sched or expertfs, $2 a room of it, $3... rooms below that one, whose headers it may include
inner_room() {
    local house=$1 room=$2 line header owner
    shift 2
    while IFS= read -r line; do
        [[ $line =~ $quoted ]] || continue
        header=${BASH_REMATCH[1]}
        owner=$(compgen -G "$house/*/$header") || continue
        owner=${owner#"$house"/}
        owner=${owner%%/*}
        [ "$owner" = "$room" ] || [[ " $* " == *" $owner "* ]] || complain "$line: $house/$room/ must not use $house/$owner/"
    done < <(includes "$house/$room"/*.[ch])
}
rooms_known() { # $1 engine, sched or expertfs, $2 the rooms that have a rule
    local room
    for room in "$1"/*/; do
        [[ " $2 " == *" $(basename "$room") "* ]] || complain "$room: no rule says what it may include"
    done
}
# Rooms of the engine, each with the lower rooms whose headers it may include. Those that serve a store, lowest first.
served='core trace cache budget planner prefetch fetch control serve'
below_served='base store source memory plain local io remote view'
engine_room() { inner_room engine "$@"; }
engine_room base
engine_room store base
engine_room source base store
engine_room index base store source
engine_room pack base store source index
engine_room memory base store
engine_room plain base store source index
engine_room local base store
engine_room io base store memory plain local
engine_room remote base store source plain io
engine_room view base store
engine_room client base source
engine_room gpu base store memory client
lower=$below_served
for room in $served; do
    engine_room "$room" $lower
    lower="$lower $room"
done
engine_room compute $lower client gpu
engine_room peer base client compute
# A room's private state is behind a pointer of struct efs, which no other room may dereference.
owner_of() { # ROOM FIELD
    local line
    while IFS= read -r line; do complain "$line: only engine/$1/ may touch fs->$2"; done < <(
        grep -nE "fs->$2->" $(find engine -name '*.[ch]' ! -path "engine/$1/*"))
}
owner_of cache extents
owner_of cache full
owner_of cache cache
owner_of cache demotion
owner_of budget budget
owner_of planner plan_thread
owner_of planner placed
owner_of prefetch prefetcher
owner_of fetch leases
owner_of fetch slots
owner_of trace record
# --wrap of a name that no longer exists does nothing: the test then calls what it was to replace.
for name in $(grep -oE '\<efs_[a-z0-9_]+[a-z0-9]\>' Makefile | sort -u); do
    grep -rqw --include='*.[ch]' "$name" engine || complain "Makefile: $name is in no file of engine/"
done
# Only memory/account.[ch] write the account of the budget, and only budget/ sets its limits.
member='account(\.|->)[a-z_]+(\[[^]]*\])?'
writes="$member *([-+*/%&|^]|<<|>>)?=([^=]|\$)|$member *(\+\+|--)|(\+\+|--)[a-z_>.-]*$member|&[a-z_>.-]*$member|struct efs_account [*a-z]"
while IFS= read -r line; do complain "$line: only engine/memory/account.[ch] may write the account"; done < <(
    grep -nE "$writes" $(find engine -name '*.[ch]' ! -path 'engine/memory/account.[ch]') | grep -v '^engine/core/efs.h:[0-9]*:    struct efs_account account;')
while IFS= read -r line; do complain "$line: only engine/budget/ may set limits"; done < <(
    grep -n 'efs_account_set_' $(find engine -name '*.[ch]' ! -path 'engine/memory/account.[ch]' ! -path 'engine/budget/*'))
# Only the plan thread has a clock, for the memory of other processes.
while IFS= read -r line; do complain "$line: engine/{budget,memory,client}/ wait for events, not for a time"; done < <(
    grep -nE 'efs_now_ns|efs_from_now|clock_gettime|timedwait|[a-z]sleep\(' engine/{budget,memory,client}/*.[ch])
# A client waits until a time only where its caller gave one, which base/request.c reads.
while IFS= read -r line; do complain "$line: engine/client/ has no time of its own"; done < <(
    grep -nE 'efs_deadline\(' engine/client/*.[ch])
while IFS=: read -r file at line; do # nor include the header that declares it, if that is a separate one
    [[ $line =~ $quoted ]] && header=${BASH_REMATCH[1]}
    [ -e "$(dirname "$file")/$header" ] || complain "$file:$at: $header is of one room alone"
done < <(includes engine/*/*.[ch] | grep -E '_(core|internal)\.h"')
rooms_known engine "base store source index pack plain memory local io remote view client gpu compute peer $served"
# Rooms of sched, lowest first. What to keep, and the order in which a request is served, are decided separately.
inner_room sched base
inner_room sched policy base
inner_room sched schedule
inner_room sched planner policy schedule base
inner_room sched simulate policy schedule planner
inner_room sched assign
inner_room sched place base
inner_room sched predict base
inner_room sched prefetch base
rooms_known sched "base policy schedule planner simulate assign place predict prefetch"
includes engine/*.h engine/*/*.[ch] | grep -i fuse && complain "engine/ must not know FUSE"
public='expertfs(-[a-z]+)*\.h'
room expertfs "$public"
# Rooms of the daemon, lowest first. Their files include daemon.h for struct efsd, which has a member for each room, so
# symbols are checked as well.
expertfs_rooms='base control export fuse'
expertfs_below() {
    case $1 in
    control) echo base ;;
    export | fuse) echo base control ;;
    esac
}
for room in $expertfs_rooms; do
    inner_room expertfs "$room" $(expertfs_below "$room")
done
rooms_known expertfs "$expertfs_rooms"
includes expertfs/*/*.h | grep -v export_internal | grep '"daemon.h"' && complain "headers of rooms come before daemon.h"
includes $(ls engine/*.h | grep -v private) | grep 'private' && complain "what is installed must not need what is not"
for tool in tools/*/; do
    tool=${tool%/}
    case $tool in
    tools/bench_kernels) ok="$public|(kernels|matvec|driver|cuda/gpu)\.h" ;; # the kernels' benchmarks
    tools/expertctl | tools/common) ok="$public|catalog\.h" ;; # info_checkpoint.c, sources.c: the engine's checked readers
    tools/moe-replay) ok="$public|catalog\.h|regular\.h" ;; # live/raw.c; base/route.c: opens files named by the user
    *) ok=$public ;;
    esac
    while IFS= read -r line; do
        [[ $line =~ $quoted ]] || continue
        header=${BASH_REMATCH[1]}
        [ -e "$tool/$header" ] || compgen -G "$tool/*/$header" >/dev/null || [ -e "tools/common/$header" ] || compgen -G "sched/*/$header" >/dev/null && continue
        [[ $header =~ ^($ok)$ ]] || complain "$line: tools/ must not use it"
    done < <(includes $(find "$tool" -name '*.[ch]'))
done

# Rooms of moe-replay, which its commands use.
replay=tools/moe-replay
inner_room $replay base
inner_room $replay report base
inner_room $replay predict base
inner_room $replay sim base predict
inner_room $replay compute base
inner_room $replay live base compute
inner_room $replay assign base compute
inner_room $replay place base
rooms_known $replay "base report predict sim compute live assign place"

# symbols: kernels/ and sched/ do no I/O, start no threads and read no clocks; kernels/ do not allocate either
forbidden='open|openat|read|write|pread|pwrite|mmap|ioctl|socket|pthread_create|clock_gettime|gettimeofday|time|nanosleep|printf|fprintf|puts|fopen|fwrite'
objects=${BUILD:-build}/obj
[ -d "$objects/kernels" ] || complain "$objects: nothing is built, so that no symbol can be looked at"
names() { (cd "$objects" && nm "$@"); } # objects by their names below $objects, whose own path may have blanks
check_symbols() { # ROOM PATTERN
    local object symbol
    while read -r object symbol; do
        [[ ${symbol%%@*} =~ ^($2)$ ]] && complain "$object uses $symbol"
    done < <(names -A -u $(cd "$objects" && find "$1" -name '*.o') | awk '{ print $1, $NF }')
}
check_symbols kernels "$forbidden|malloc|calloc|realloc|free"
check_symbols sched "$forbidden"
# The symbols of other rooms that each room of the daemon uses.
objects_of() { # a folder's objects, without those whose source was removed
    local source object
    for source in "$1"/*.c; do
        object=${source%.c}.o
        [ ! -e "$objects/$object" ] || echo "$object"
    done
}
defined=$(for room in $expertfs_rooms; do
    names --defined-only $(objects_of "expertfs/$room") | awk -v room="$room" '$2 ~ /[A-Z]/ { print $3, room }'
done | sort -u)
for room in $expertfs_rooms; do
    while read -r symbol owner; do
        [[ " $room $(expertfs_below "$room") " == *" $owner "* ]] || complain "expertfs/$room/ uses $symbol of expertfs/$owner/"
    done < <(join <(names -u $(objects_of "expertfs/$room") | awk '$1 == "U" { print $2 }' | sort -u) <(echo "$defined"))
done
# A room of the engine only calls its own functions and those of rooms that it may include.
declare -A room_of
while read -r object symbol; do
    object=${object#engine/}
    room_of[$symbol]=${object%%/*}
done < <(names -A --defined-only $(for room in engine/*/; do objects_of "${room%/}"; done) |
    awk '$2 ~ /[TDBR]/ { sub(/:.*/, "", $1); print $1, $3 }')
calls() { # ROOM, rooms that it may call
    local room=$1 object symbol owner
    while read -r object symbol; do
        owner=${room_of[$symbol]:-$room}
        [ "$owner" = "$room" ] || [[ " $* " == *" $owner "* ]] || complain "$object: calls $symbol of engine/$owner/"
    done < <(names -A -u $(objects_of "engine/$room") | awk '{ sub(/:.*/, "", $1); print $1, $NF }' |
        grep ' efs_')
}
calls plain base store source index # nor io/ by it: neither needs the packer
calls io base store source index memory plain local
calls remote base store source index memory plain io
lower=$below_served
for room in $served; do
    calls "$room" $lower
    lower="$lower $room"
done
# Files of a room do not call each other in a cycle: shared functions are in a separate, lower file.
symbols() { # FLAG PATTERN FILE...: symbol and object
    local flag=$1 pattern=$2
    shift 2
    names -A "$flag" "$@" | awk -v pattern="$pattern" '$(NF - 1) ~ pattern { sub(/:.*/, "", $1); print $NF, $1 }' | sort -u
}
for room in $(find engine expertfs sched kernels tools -name '*.c' -printf '%h\n' | sort -u); do
    mapfile -t files < <(objects_of "$room")
    [ "${#files[@]}" -gt 1 ] || continue
    while read -r object; do complain "${object%.o}.c: calls others of $room/ in a circle"; done < <(
        join <(symbols -u U "${files[@]}") <(symbols --defined-only '^[TDBR]$' "${files[@]}") |
            awk '$2 != $3 { print $2, $3 }' | sort -u | tsort 2>&1 >/dev/null | awk '$2 ~ /\.o$/ { print $2 }' | sort -u)
done
# `make check T=ROOM` has a row for each room.
for room in engine/*/ expertfs/*/ sched/*/ tools/*/; do
    [ "$(tests/reach "${room%/}")" != "${room%/}" ] || complain "${room%/}: no row in tests/reach says which tests cover it"
done
while IFS= read -r line; do complain "$line: an expression chooses the function that is called"; done < <(
    grep -nE '\([^()?]*\?[^:()]*:[^()]*\)\(' $(git ls-files 'engine/*.[ch]' 'expertfs/*.[ch]' 'sched/*.[ch]' 'kernels/*.[ch]' 'tools/*.[ch]'))
# Every source file names its licence.
while IFS= read -r file; do complain "$file: no SPDX line"; done < <(
    git ls-files -z '*.c' '*.h' '*.cu' '*.py' 2>/dev/null | xargs -0 -r grep -L 'SPDX-License-Identifier: Apache-2.0')

python3 tests/house/rooms.py --check || complain "the picture of the rooms"
[ "$bad" = 0 ] && echo "the house's rules hold"
exit $bad
