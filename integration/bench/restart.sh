#!/usr/bin/env bash
# Restarts a daemon by SIGTERM, SIGKILL and an upgrade between two builds while programs work in views, on tmpfs. Prints
# Markdown: the longest waits, beside those of the same programs without a restart, the descriptors and memory of processes, and
# whether each operation that a program had an answer to is in the log once. Fails if a program had an error. Usage, as root:
#
#	restart.sh [-rounds N] [-agents N] [-busy N] [-smoke]
#
# Each round (-rounds, 20) is one restart of each kind, with -agents views (100), of which -busy (20) have a program that works: a
# quarter of the programs in a sandbox of scopefs run, the others on the host. A client of scopefs mcp makes calls. The rows "native"
# are of the same programs: a stat(2) on another file system, and a byte to another process and back, which is what a
# request to a file system in another process takes at least at this load.
# -smoke is all of it in sizes that measure nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=20 agents=100 busied=20
while [ $# -gt 0 ]; do
	case $1 in
	-smoke) rounds=1 agents=3 busied=2 ;;
	-rounds) rounds=$2; shift ;;
	-agents) agents=$2; shift ;;
	-busy) busied=$2; shift ;;
	*) echo "bench: unknown option $1: see $0" >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
build
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors; $rounds rounds, $agents views, $busied programs."
echo
"$top/bench" restart "$rounds" "$agents" "$busied" "$top" "$top/scopefs" "$top/bench"
