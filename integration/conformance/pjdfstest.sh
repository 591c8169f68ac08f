#!/usr/bin/env bash
# Usage, as root: pjdfstest.sh [-native] [-only TEXT] [-view LINE] SOURCE
# Runs pjdfstest in a view that decides by the caller's rights. SOURCE is a built checkout of
# https://github.com/pjd/pjdfstest, with the program pjdfstest in it. A test is a file and a number, as in chmod/00.t 7. Loops
# over the types of files have FIFOs in place of device nodes, which views refuse: otherwise 1,798 tests would fail for want
# of a device node, and a defect among them would not be noticed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/conformance/view.sh
[ $# -eq 1 ] || usage
source=$(realpath -e "$1" 2>/dev/null) || fail "$1: no such directory: clone https://github.com/pjd/pjdfstest"
[ -d "$source/tests" ] || fail "$source: no tests: clone https://github.com/pjd/pjdfstest"
[ -x "$source/pjdfstest" ] || fail "$source/pjdfstest: not built: build it as $source/README says"

# The copy keeps the number of each test.
mkdir "$top/suite"
cp -r "$source/tests" "$top/suite"
cp "$source/pjdfstest" "$top/suite"
find "$top/suite/tests" -name '*.t' -exec sed -i '/^\t*for type/s/ block char / fifo fifo /' {} +
tests=$top/suite/tests

keys="identity: caller" agent posix "allow_other: true" "xattrs: true"
start_views
view=$(in_view posix)
umask 022

# one FILE: runs a file of tests. A number of its plan that it does not report has failed.
one() {
	local name=${1#"$tests/"} code=0
	mkdir "$view/work"
	timed 600 "$top/said" env -C "$view/work" sh "$1" || code=$?
	awk -v name="$name" -v code=$code '
		/^1\.\.[0-9]+/ { plan = substr($1, 4) + 0; whole = /SKIP|skip/ ; planned = 1 }
		/^(not )?ok [0-9]+/ {
			number = $1 == "ok" ? $2 : $3
			seen[number] = 1
			if (/# TODO/ || /# SKIP/) print "skip " name " " number
			else if ($1 == "ok") print "ok " name " " number
			else { detail = $0; sub(/^not ok [0-9]+( - )?/, "", detail); print "fail " name " " number ": " detail }
		}
		END {
			for (i = 1; i <= plan; i++) if (!(i in seen)) print "fail " name " " i ": not reported, status " code
			if (planned && plan == 0) print "skip " name
			if (!planned) print "fail " name ": no plan, status " code
		}' "$top/said" >>"$top/results"
	chmod -R u+rwx "$view/work" 2>/dev/null || true
	rm -rf "$view/work"
}
for file in $(cd "$tests" && find . -name '*.t' -printf '%P\n' | sort); do
	[[ $file == *"$only"* ]] || continue
	one "$tests/$file"
done
same_views && passed "the view's process" || failed "the view's process" "ended while the tests ran"
report integration/conformance/pjdfstest.expected
