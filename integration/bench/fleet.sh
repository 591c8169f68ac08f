#!/usr/bin/env bash
# Runs a fleet on this machine: one NATS server with JetStream, and nodes with a log, approvals and a scopefs-export each, without
# views. Prints Markdown: how late the reader of events is, a round of approvals, a definition for all nodes, what the nodes do after
# a cut and after a restart of the server, processors and memory. Usage, as root:
#
#	fleet.sh [-nodes N] [-agents N] [-rate N] [-seconds N] [-approvals N] [-cut MINUTES] [-smoke]
#
# Each of -agents (100) of each of -nodes (1000) records -rate events an hour (60). An operator decides about -approvals requests
# (30) in -seconds (60). One node is cut off for an hour, all nodes for -cut minutes (5). -smoke is all of it in sizes that
# measure nothing. The logs, without the 16 MiB that each reserves, and the server's files are on tmpfs, or in SCOPEFS_BENCH_DIR.
# The network namespace is the run's own, so that the bytes on its loopback interface are the fleet's alone. For its time it raises
# fs.inotify.max_user_instances.
set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=1000 agents=100 rate=60 seconds=60 approvals=30 cut=5
while [ $# -gt 0 ]; do
	case $1 in
	-smoke) nodes=3 agents=4 seconds=4 approvals=2 cut=1 ;;
	-nodes | -agents | -rate | -seconds | -approvals | -cut)
		[ $# -ge 2 ] || { echo "$1 wants a value" >&2; exit 2; }
		declare "${1#-}=$2"
		shift
		;;
	*) sed -n '2,/^set/s/^#\( \|$\)\?//p' "$0" >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
build
CGO_ENABLED=0 go build -trimpath -o "$top/scopefs-export" ./cmd/scopefs-export
ulimit -n "$(ulimit -Hn)"
# Each node's program has an instance of inotify(7). On a host of its own that is one.
limit=/proc/sys/fs/inotify/max_user_instances was=$(cat "$limit")
if [ "$was" -lt $((nodes + 256)) ]; then
	trap 'echo "$was" >"$limit"; cleanup' EXIT
	echo $((nodes + 256)) >"$limit"
fi
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
unshare --net sh -c 'ip link set lo up && exec "$@"' - \
	"$top/bench" fleet "$nodes" "$agents" "$rate" "$seconds" "$approvals" "$cut" "$top" "$top/scopefs"
