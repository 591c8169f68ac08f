#!/usr/bin/env bash
# Usage, as root: fsx.sh [-native] [-only TEXT] [-view LINE] SOURCE
# Runs fsx, which compares random operations on one file with a copy in memory, in views of four kinds. SOURCE is a built
# checkout of https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git with ltp/fsx in it. A test is a view and a mode, as in
# "mediated mapped". SCOPEFS_FSX_OPS is the number of operations of each test, default 20000; the seeds are fixed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/conformance/view.sh
[ $# -eq 1 ] || usage
fsx=$(realpath "$1")/ltp/fsx
[ -x "$fsx" ] || fail "$fsx: not built: clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git and build it as its README says"

four_views
declare -A modes=(
	[mapped]="-S 1"
	[small]="-S 2 -l 40000 -o 9000 -c 20"
	[invalidated]="-S 3 -f"
	[synced]="-S 4 -y"
	[unmapped]="-S 5 -R -W"
	[direct]="-S 6 -Z -R -W -r 4096 -w 4096 -t 4096"
	[asynchronous]="-S 7 -A"
	[uring]="-S 8 -U"
	[polluted]="-S 9 -e 1"
)
mkdir "$top/fsx"
for which in passthrough mediated uncached caller; do
	view=$(in_view "$which")
	for mode in $(printf '%s\n' "${!modes[@]}" | sort); do
		name="$which $mode"
		[[ $name == *"$only"* ]] || continue
		read -ra options <<<"${modes[$mode]}"
		code=0
		timed 600 "$top/said" "$fsx" -q -N "${SCOPEFS_FSX_OPS:-20000}" -P "$top/fsx" "${options[@]}" "$view/$mode" || code=$?
		if [ $code -eq 0 ]; then
			passed "$name"
		else
			failed "$name" "status $code: $(tail -n 1 "$top/said")"
			grep -v '^[0-9]*(' "$top/said" | head -n 20 >&2 || true
		fi
		rm -f "$view/$mode"*
	done
done
same_views && passed "the views' processes" || failed "the views' processes" "ended while the tests ran"
report integration/conformance/fsx.expected
