#!/usr/bin/env bash
# Usage, as root: fsstress.sh [-native] [-only TEXT] [-view LINE] SOURCE
# Runs fsstress, four processes that do random operations in one tree, in views of four kinds. Then the tree in the view
# and the tree below it must be equal in names, types, modes, owners, sizes, times, link targets and content. SOURCE is a
# built checkout of https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git with ltp/fsstress in it. A test is a view and a
# mode, as in "mediated names". SCOPEFS_FSSTRESS_OPS is the number of operations of each process, default 5000.
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/conformance/view.sh
[ $# -eq 1 ] || usage
fsstress=$(realpath "$1")/ltp/fsstress
[ -x "$fsstress" ] || fail "$fsstress: not built: clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git and build it as its README says"

four_views
names=() data=()
for op in creat mkdir mknod link symlink rename rnoreplace rexchange unlink rmdir getdents readlink stat chown truncate; do names+=(-f "$op=4"); done
for op in creat read write readv writev mread mwrite dread dwrite aread awrite uring_read uring_write splice copyrange fallocate punch zero truncate fsync; do data+=(-f "$op=4"); done

# tree DIR: one line for each name below DIR, then the checksums of regular files.
tree() {
	(
		cd "$1"
		find . -mindepth 1 -printf '%P %y %m %U:%G %n %s %T@ %l\n' | sort
		find . -type f -print0 | sort -z | xargs -0 -r cksum
	) 2>&1
}

for which in passthrough mediated uncached caller; do
	view=$(in_view "$which")
	for mode in all names data; do
		name="$which $mode"
		[[ $name == *"$only"* ]] || continue
		options=(-p 4 -n "${SCOPEFS_FSSTRESS_OPS:-5000}" -s 7)
		case $mode in
		names) options+=(-z "${names[@]}") ;;
		data) options+=(-z "${data[@]}") ;;
		esac
		mkdir "$view/$mode"
		code=0
		timed 900 "$top/said" env -C "$top" "$fsstress" -d "$view/$mode" "${options[@]}" || code=$?
		if [ $code -ne 0 ]; then
			failed "$name" "status $code: $(tail -n 1 "$top/said")"
		elif ! tree "$view/$mode" >"$top/in"; then
			failed "$name" "the tree cannot be read: $(grep -m 1 '^[a-z]*: ' "$top/in")"
		elif [ -z "$native" ] && ! { tree "$base/agents/$which/$mode" >"$top/below" && cmp -s "$top/in" "$top/below"; }; then
			failed "$name" "the view and the tree below it differ"
			diff "$top/below" "$top/in" | head -n 10 >&2 || true
		elif ! rm -rf "$view/$mode"; then
			failed "$name" "rm -rf failed"
		else
			passed "$name"
		fi
		rm -rf "${view:?}/$mode" || true
	done
done
same_views && passed "the views' processes" || failed "the views' processes" "ended while the tests ran"
report integration/conformance/fsstress.expected
