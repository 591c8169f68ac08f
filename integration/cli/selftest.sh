#!/usr/bin/env bash
# Makes the attempts of scopefs selftest against scopefs, no sandbox, bubblewrap, @anthropic-ai/sandbox-runtime, bindfs and
# go-fuse's loopback, and prints the table of docs/security.md: attempts that reached what is outside, of those that were made.
# Usage, as root, for half an hour: selftest.sh [CLASS|ID]...
set -euo pipefail
cd "$(dirname "$0")/../.."
.ci/need bwrap:bubblewrap socat:socat rg:ripgrep bindfs:bindfs
.ci/clients
. integration/bench/sides.sh
export CGO_ENABLED=0
go build -trimpath -o "$top/scopefs" ./cmd/scopefs
go build -trimpath -o "$top/scopefsd" ./cmd/scopefsd
go build -trimpath -o "$top/scopefs-stores" ./cmd/scopefs-stores
go build -trimpath -o "$top/loopback" github.com/hanwen/go-fuse/v2/example/loopback

# srt reads everything and writes nothing by default. This is what it can do for an agent with one directory: {dir} is in /tmp.
cat >"$top/srt.json" <<'END'
{"network": {"allowedDomains": [], "deniedDomains": []},
 "filesystem": {"denyRead": ["/tmp"], "allowRead": ["."], "allowWrite": ["."], "denyWrite": []}}
END
printf '#!/bin/sh\nexec %q/node/bin/node %q/node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js "$@"\n' "$here/bin/clients" "$here/bin/clients" >"$top/srt"
chmod 755 "$top/srt"
export PATH=$top:$PATH TMPDIR=/tmp

classes="files view processes network host tools stores context delegation"
echo "| attempts that reached what is outside, of those made | ${classes// / | } |"
echo "|---|$(printf -- '---|%.0s' $classes)"
# row NAME [--against COMMAND]: a cell has the attempts that failed, of those that were made. None is for what does not apply.
row() {
	local name=$1
	shift
	scopefs selftest --json "$@" "${words[@]}" >"$top/outcomes" 2>"$top/log" || [ -s "$top/outcomes" ] || { cat "$top/log" >&2; fail "$name"; }
	grep -q '"state"' "$top/outcomes" || fail "$name"
	awk -F'"' -v name="$name" -v classes="$classes" '
		{ class = state = ""; for (i = 2; i < NF; i += 2) { if ($i == "class" && class == "") class = $(i + 2); if ($i == "state") state = $(i + 2) } n[class, state]++ }
		END {
			printf "| %s |", name
			count = split(classes, all, " ")
			for (i = 1; i <= count; i++) {
				c = all[i]; made = n[c, "held"] + n[c, "failed"]; lost = n[c, "not made"]
				printf " %s%s |", made ? n[c, "failed"] + 0 " of " made : "", lost ? ", " lost " not made" : ""
			}
			print ""
		}' "$top/outcomes"
}
words=("$@")
row scopefs
for against in env 'bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --bind {dir} {dir} --unshare-all' "srt -s $top/srt.json" \
	'bindfs -f {dir} {mnt}' 'loopback -q {mnt} {dir}'; do
	row "\`${against//$top\//}\`" --against "$against"
done
