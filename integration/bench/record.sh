#!/usr/bin/env bash
# Compares views of one daemon that record different operations, on tmpfs: record: denials, the default, writes, opens, all.
# Arguments go to bench: -rounds N, -only TEXT. Needs root. SCOPEFS_BENCH_BEFORE names another build of scopefs, of which
# the same views are measured in the same rounds.
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/bench/sides.sh
before=
trap '[ -z "$before" ] || { kill -INT "$before"; wait "$before" || true; }; cleanup' EXIT
build
views=()
for level in denials writes opens all; do
	agent "$level" 0 "view: {record: $level}"
	views+=("$level=$top/base/run/views/$level")
done
printf 'log: {agent_day: 10GiB}\n' >"$top/base/scopefs.yaml" # a flood of benchmarks is not slowed down
if [ -n "${SCOPEFS_BENCH_BEFORE:-}" ]; then
	cp -a "$top/base" "$top/before"
	"$SCOPEFS_BENCH_BEFORE" daemon --base "$top/before" 2>"$top/log.before" & before=$!
	await "4 views" "$before" serves 4
	for level in denials writes opens all; do views+=("before-$level=$top/before/run/views/$level"); done
	start_daemon 8
else
	start_daemon 4
fi
"$top/bench" "$@" "${views[@]}"
