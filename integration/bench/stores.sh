#!/usr/bin/env bash
# Measures calls of the stores' tools: over standard input and output through `scopefs mcp`, a daemon and its log, beside
# direct calls of the same client library from one process, in one run. Prints Markdown. Usage, as root:
#
#	stores.sh [-count N] [-warm N] [-smoke]
#
# Each row is -warm calls (100) that do not count, and then -count (2000), in blocks of 100 that take turns. -smoke is all
# of it in sizes that measure nothing. Files are on tmpfs, or in SCOPEFS_BENCH_DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=2000 warm=100
. integration/bench/counts.sh
. integration/bench/sides.sh
build
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
"$top/bench" stores "$count" "$warm" "$top" "$top/scopefs" 2>"$top/said" || { tail -n 5 "$top/said" >&2; fail "stores"; }
