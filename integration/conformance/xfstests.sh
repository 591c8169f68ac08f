#!/usr/bin/env bash
# Usage, as root: xfstests.sh [-only TEXT] [-view LINE] SOURCE
# Runs the group generic/quick of xfstests in two views, without a device. SOURCE is a built checkout of
# https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git. A test is a number, as in generic/013; with -only the text is a list
# of numbers. The tests run in a mount and a pid namespace of their own, where the users that xfstests wants exist: the host
# gets no new user, and no process of a test outlives the script.
set -euo pipefail
[ $$ -eq 1 ] || exec unshare --mount --pid --fork --kill-child --mount-proc bash "$0" "$@"
cd "$(dirname "$0")/../.."
. integration/conformance/view.sh
[ $# -eq 1 ] && [ -z "$native" ] || usage
source=$(realpath -e "$1" 2>/dev/null) || fail "$1: no such directory: clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git"
[ -x "$source/check" ] || fail "$source: no program check: clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git"
[ -x "$source/ltp/fsstress" ] && [ -s "$source/tests/generic/group.list" ] || fail "$source: not built: build it as $source/README says"
command -v xfs_io >/dev/null || fail "xfs_io: not installed: apt install xfsprogs"

# xfstests mounts and unmounts by mount(8) and umount(8), reads the type of a file system by df(1), and expects users in
# passwd(5). These programs are first in PATH: they mount by scopefs up and unmount by scopefs down, and call the host's for
# everything else. Options of mount(8) are applied to the mounted view. dmesg(1) leaves out processes that the kernel killed
# for want of memory: they belong to other work on the host.
mkdir "$top/bin" "$top/xfstests"
cat >"$top/bin/mount" <<-EOT
	#!/usr/bin/env bash
	words=("\$@") view= with=()
	for ((i = 0; i < \${#words[@]}; i++)); do
		case \${words[i]} in
		fuse.scopefs) view=\${words[-2]#scopefs:} to=\${words[-1]} ;;
		-o) with+=("\${words[++i]}") ;;
		-o?*) with+=("\${words[i]#-o}") ;;
		esac
	done
	[ -n "\$view" ] || { [[ "\${with[*]}" == *remount* ]] && set -- -i "\$@"; exec $(type -P mount) "\$@"; }
	"$program" --base "$base" up "\$view" --at "\$to" >/dev/null || exit 32
	[ \${#with[@]} -eq 0 ] || $(type -P mount) -i -o "remount,\$(IFS=,; echo "\${with[*]}")" "\$to" && exit
	"$program" --base "$base" down "\$view" >/dev/null
	exit 32
EOT
cat >"$top/bin/umount" <<-EOT
	#!/usr/bin/env bash
	view=\${!#}
	case \$view in
	scopefs:* | "$top/mounts/"*) view=\${view#scopefs:} view=\${view##*/} ;;
	*) exec $(type -P umount) "\$@" ;;
	esac
	grep -q "^scopefs:\$view " /proc/mounts || { echo "umount: \$view: not mounted." >&2; exit 32; }
	exec "$program" --base "$base" down "\$view" >/dev/null
EOT
cat >"$top/bin/df" <<-EOT
	#!/bin/sh
	$(type -P df) "\$@" | sed 's/fuse\.scopefs/fuse/'
EOT
cat >"$top/bin/dmesg" <<-EOT
	#!/bin/sh
	$(type -P dmesg) "\$@" | grep -v oom-kill
EOT
chmod +x "$top/bin"/*
{ cat /etc/passwd; printf '%s:*:%d:%d::/:/bin/bash\n' fsgqa 60001 60001 fsgqa2 60002 60002 123456-fsgqa 60003 60003; } >"$top/passwd"
{ cat /etc/group; printf '%s:*:%d:\n' fsgqa 60001 fsgqa2 60002 123456-fsgqa 60003; } >"$top/group"
for file in passwd group; do grep -q fsgqa2 /etc/$file || mount --bind "$top/$file" /etc/$file; done

# The views are of an ext4 file system of their own: tests that fill one do not fill the disk of the host.
truncate -s 12G "$top/image"
mkfs.ext4 -q "$top/image"
mkdir "$base"
mount -o loop "$top/image" "$base"
for name in test scratch; do
	mkdir -p "$top/mounts/$name"
	keys="identity: caller" agent "$name" "allow_other: true" "xattrs: true"
done
start_views
for name in test scratch; do "$program" --base "$base" down "$name" >/dev/null; done
cat >"$top/config" <<-EOT
	export FSTYP=fuse FUSE_SUBTYP=.scopefs
	export TEST_DEV=scopefs:test TEST_DIR=$top/mounts/test
	export SCRATCH_DEV=scopefs:scratch SCRATCH_MNT=$top/mounts/scratch
	export RESULT_BASE=$top/xfstests
EOT
# Tests that raise limits of resources fail without CAP_SYS_RESOURCE (24), which some containers and virtual machines lack.
awk '/^CapEff/ { exit substr($2, 10, 1) ~ /[13579bdf]/ }' /proc/self/status && printf 'generic/%s\n' 394 531 >"$top/exclude"
touch "$top/exclude"
read -ra tests <<<"${only:--g generic/quick}"
cd "$source"
code=0
timed 5400 "$top/said" env PATH="$top/bin:$PATH" HOST_OPTIONS="$top/config" ./check -E "$top/exclude" "${tests[@]}" || code=$?
cd "$OLDPWD"
grep -q '^Ran:' "$top/said" || { tail -n 20 "$top/said" >&2; failed "the suite" "ended early, status $code"; }
[ -z "${SCOPEFS_XFSTESTS_RESULTS:-}" ] || { cp "$top/said" "$top/xfstests/said"; cp -r "$top/xfstests/." "$SCOPEFS_XFSTESTS_RESULTS"; }

# A failure that check notices after a test, as in the kernel's log, is in its last lines only.
awk '
	/^Failures:/ { for (i = 2; i <= NF; i++) if (!($i in state) || state[$i] !~ /^fail/) state[$i] = "fail " $i ": failed"; next }
	/^generic\/[0-9]+ / {
		if (/\[not run\]/) state[$1] = "skip " $1
		else if (/\[expunged\]/) state[$1] = "skip " $1
		else if (/\[failed|output mismatch|\[dmesg/) { sub(/^generic\/[0-9]+ +([0-9]+s)? *\.\.\. */, "& "); text = $0; sub(/^[^[-]*[[-] */, "", text); state[$1] = "fail " $1 ": " text }
		else state[$1] = "ok " $1
	}
	END { for (name in state) print state[name] }' "$top/said" | sort >>"$top/results"
report integration/conformance/xfstests.expected
