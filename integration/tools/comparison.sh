#!/usr/bin/env bash
# Prints, in Markdown, which steps of a scripted session work in sandbox-runtime and in Codex' sandbox, then the commands of
# the same session with scopefs (comparison_test.go), and the table of habits.sh. Registries and models are on loopback.
# Usage, as root: comparison.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
.ci/need bwrap:bubblewrap git:git socat:socat rg:ripgrep /usr/sbin/sshd:openssh-server inotifywait:inotify-tools curl:curl openssl:openssl \
	/usr/lib/python3/dist-packages/pip:python3-pip
.ci/clients
unshare -n sh -ec '
	ip link set lo up
	ip link add here type veth peer name there
	ip address add 151.101.1.1/24 dev here
	ip link set here up
	unshare -n sleep infinity &
	trap "kill $!" EXIT
	until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
	ip link set there netns $!
	nsenter -t $! -n sh -ec "ip link set lo up; ip address add 151.101.1.2/24 dev there; ip link set there up"
	SCOPEFS_COMPARE_NET=/proc/$!/ns/net "$@"
' sh env SCOPEFS_COMPARE="${SCOPEFS_COMPARE:-$(dirname "$(command -v socat)")}" REQUIRE_FUSE=1 go test -count=1 -v -timeout 30m \
	-run "${1:-TestClients(Projects|OtherSandboxes)\$}" ./integration/tools |
	grep -E '^\||^ +comparison_test.go.*\$ (scopefs|srt|codex)|^(ok|FAIL|---)'
packaging/build bin/test ./cmd/scopefs*
integration/tools/habits.sh bin/test/scopefs bin/clients
