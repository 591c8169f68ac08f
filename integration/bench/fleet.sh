#!/usr/bin/env bash
# Runs a fleet on this machine: one NATS server with JetStream, and nodes with a log, approvals and a scopefs-export each, without
# views. Prints Markdown: how late the reader of events is, a round of approvals, a definition for all nodes, what the nodes do after
# a cut of the server, and memory. Usage, as root:
#
#	fleet.sh [-nodes N] [-agents N] [-rate N] [-seconds N] [-approvals N] [-cut MINUTES] [-smoke]
#
# Each of -agents (100) of each of -nodes (1000) records -rate events an hour (60). -smoke is all of it in sizes that measure
# nothing. The logs, which reserve 16 MiB each, and the server's files are on tmpfs, or in SCOPEFS_BENCH_DIR. The network namespace is the run's own, so that
# the bytes on its loopback interface are the fleet's alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=1000 agents=100 rate=60 seconds=120 approvals=100 cut=60
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
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
unshare --net sh -c 'ip link set lo up && exec "$@"' - \
	"$top/bench" fleet "$nodes" "$agents" "$rate" "$seconds" "$approvals" "$cut" "$top" "$top/scopefs"
