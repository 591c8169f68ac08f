#!/usr/bin/env bash
# Measures starts, as root and as an ordinary user, on tmpfs: scopefs version, each program by itself, run with and without a daemon, and
# call, beside an empty Go program and bubblewrap in the same rounds. Prints Markdown: medians and ratios. The sum of a path is that of
# the empty programs and of bubblewrap in place of the programs that start one after the other. Usage, as root:
#
#	start.sh [-rounds N]
#
# SCOPEFS_BENCH_BEFORE is a directory with the programs of another build, which is measured in the same rounds.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=21
while [ $# -gt 0 ]; do
	case $1 in
	-rounds) rounds=$2; shift ;;
	*) echo "bench: unknown option $1: see $0" >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
chmod 755 "$top"
mkdir "$top/after"
go build -o "$top/bench" ./integration/bench
# As they are installed: stripped.
for program in cmd/scopefs*; do
	case $program in
	*-stores | *-export | *-console | *-csi) continue ;;
	esac
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$top/after/" "./$program"
done
mkdir "$top/src"
printf 'package main\n\nfunc main() {}\n' >"$top/src/empty.go"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$top/empty" "$top/src/empty.go"
if [ -n "${SCOPEFS_BENCH_BEFORE:-}" ]; then cp -r "$SCOPEFS_BENCH_BEFORE" "$top/before"; fi
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors; medians of $rounds."
echo
"$top/bench" start "$rounds" "$top" "$top/after" "${SCOPEFS_BENCH_BEFORE:+$top/before}"
