#!/usr/bin/env bash
# Measures an agent's network: requests, streamed answers, downloads and idle tunnels of a client in a sandbox, through the
# daemon, to a TLS server on loopback; directly; through tinyproxy; and in a sandbox of @anthropic-ai/sandbox-runtime. One
# run, in blocks that take turns. Prints Markdown. Usage, as root:
#
#	egress.sh [-count N] [-rounds N] [-mib N] [-idle N] [-smoke]
#
# Each latency is of -count requests (1000), each download of -mib MiB (1024), -rounds times (5), and -idle tunnels (1000)
# are open for the memory. 0 leaves the part out. -smoke is all of it in sizes that measure nothing. Needs what .ci/clients installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=1000 rounds=5 mib=1024 idle=1000
while [ $# -gt 0 ]; do
	case $1 in
	-smoke) count=10 rounds=1 mib=8 idle=10 ;;
	-count | -rounds | -mib | -idle)
		[ $# -ge 2 ] || { echo "$1 wants a value" >&2; exit 2; }
		declare "${1#-}=$2"
		shift
		;;
	*) sed -n '2,/^set/s/^#\( \|$\)\?//p' integration/bench/egress.sh >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
REQUIRE_CLIENTS=1 .ci/clients
build
ulimit -n 8192
echo "Load average before: $(cut -d' ' -f1-3 /proc/loadavg); $(nproc) processors."
echo
"$top/bench" egress "$count" "$rounds" "$mib" "$idle" "$top" "$top/scopefs" "$top/bench" \
	"$here/bin/clients/node/bin/node" "$here/bin/clients/node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js" 2>"$top/said" ||
	{ tail -n 5 "$top/said" >&2; fail "egress"; }
