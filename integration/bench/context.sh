#!/usr/bin/env bash
# Measures what a context of 1 MiB adds to calls of tools, over standard input and output through `scopefs mcp`, and reads
# of /context beside those of other files. Prints Markdown. Usage, as root:
#
#	context.sh [-count N] [-warm N] [-smoke]
#
# Each row is -warm calls (50) that do not count, and then -count (1000), in blocks of 20 that take turns. -smoke is all
# of it in sizes that measure nothing. Files are on tmpfs, or in SCOPEFS_BENCH_DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=1000 warm=50
. integration/bench/counts.sh
. integration/bench/sides.sh
build
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
"$top/bench" context "$count" "$warm" "$top" "$top/scopefs" "$top/bench" 2>"$top/said" || { tail -n 5 "$top/said" >&2; fail "context"; }
