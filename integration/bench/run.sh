#!/usr/bin/env bash
# Compares a scopefs view with the directory itself, with bindfs and with
# go-fuse's loopback, in one run on tmpfs, so that only the layers count.
# Arguments go to bench: -rounds N, -only TEXT. Needs root; apt-get install bindfs.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$(mktemp -d /dev/shm/scopefs-bench-XXXXXX)
daemon= loopback=
cleanup() {
	[ -n "$daemon" ] && kill "$daemon" && wait "$daemon" || true
	umount "$top/loopback" "$top/bindfs" 2>/dev/null || true
	[ -n "$loopback" ] && wait "$loopback" || true
	rm -rf "$top"
}
trap cleanup EXIT
mkdir -p "$top"/{native,loopback,loopback.d,bindfs,bindfs.d,base/agents.d,base/agents/bench}
printf -- '---\nname: bench\ndescription: measured\n---\n' >"$top/base/agents.d/bench.md"
go build -o "$top/bench" ./integration/bench
CGO_ENABLED=0 go build -trimpath -o "$top/scopefs" ./cmd/scopefs
CGO_ENABLED=0 go build -o "$top/go-fuse-loopback" github.com/hanwen/go-fuse/v2/example/loopback
bindfs "$top/bindfs.d" "$top/bindfs"
"$top/go-fuse-loopback" -q "$top/loopback" "$top/loopback.d" >/dev/null & loopback=$!
"$top/scopefs" daemon --base "$top/base" 2>"$top/log" & daemon=$!
for _ in $(seq 100); do
	grep -q "$top/loopback " /proc/mounts && grep -q "scopefs:bench $top" /proc/mounts && break
	sleep 0.1
done
"$top/bench" "$@" native="$top/native" bindfs="$top/bindfs" loopback="$top/loopback" scopefs="$top/base/run/views/bench"
