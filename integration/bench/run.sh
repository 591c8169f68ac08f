#!/usr/bin/env bash
# Compares a scopefs view with the directory itself, with bindfs and with
# go-fuse's loopback, in one run on tmpfs, so that only the layers count.
# Arguments go to bench: -rounds N, -only TEXT. Needs root; apt-get install bindfs.
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/bench/sides.sh
mkdir "$top/native"
build
start_peers
agent bench
start_daemon 1
"$top/bench" "$@" native="$top/native" bindfs="$top/bindfs" loopback="$top/loopback" scopefs="$top/base/run/views/bench"
