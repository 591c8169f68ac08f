#!/usr/bin/env bash
# Compares calls of an agent's tools with those of @modelcontextprotocol/server-filesystem on a plain directory, both over
# standard input and output, in one run on tmpfs: with the Go SDK's client, and with one that does no more than it must,
# so that what a client takes can be told apart. Prints Markdown. Usage, as root:
#
#	mcp.sh [-count N] [-warm N] [-smoke]
#
# Each client makes -warm calls (200) that do not count, and then -count (2000), in blocks of 100 that take turns. -smoke is
# all of it in sizes that measure nothing. Needs what .ci/clients installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=2000 warm=200
. integration/bench/counts.sh
. integration/bench/sides.sh
.ci/clients
build
mkdir "$top/native"
agent bench
start_daemon 1
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
"$top/bench" mcp "$count" "$warm" "$top/base/agents/bench" "$top/native" "$top/scopefs" "$top/base" \
	"$here/bin/clients/node/bin/node" "$here/bin/clients/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js" 2>"$top/said" ||
	{ tail -n 5 "$top/said" >&2; fail "mcp"; }
