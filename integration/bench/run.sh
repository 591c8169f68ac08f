#!/usr/bin/env bash
# Compares a scopefs view with the directory itself and with other FUSE layers:
# bindfs, go-fuse's loopback, and libfuse's passthrough_hp if it is in PATH. One
# run, by default on tmpfs, so that only the layers count. Arguments go to
# bench: -rounds N, -only TEXT, -smoke. SCOPEFS_BENCH_DIR names the directory to
# work in, default /dev/shm. The table is also drawn, to bin/operations.svg. Needs root; apt-get install bindfs.
set -euo pipefail
cd "$(dirname "$0")/../.."
nopeers=
. integration/bench/sides.sh
start_sides
args=("$@")
for side in "${sides[@]}"; do args+=("$side=${dir[$side]}"); done
"$top/bench" "${args[@]}" | tee "$top/table"
summary <"$top/table"
chart operations "Single operations, × native"
