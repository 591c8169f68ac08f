#!/usr/bin/env bash
# Prints, in Markdown, which steps of a scripted session work in sandbox-runtime and in Codex' sandbox, and then the commands of
# the same session with scopefs (comparison_test.go). Registries and models are on loopback. Usage, as root: comparison.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
.ci/need bwrap:bubblewrap git:git socat:socat rg:ripgrep /usr/lib/python3/dist-packages/pip:python3-pip
.ci/clients
SCOPEFS_COMPARE=$(dirname "$(command -v socat)") REQUIRE_FUSE=1 go test -count=1 -v -timeout 30m -run 'TestClients(Projects|OtherSandboxes)$' ./integration/tools |
	grep -E '^\||^ +comparison_test.go.*\$ (scopefs|srt|codex)|^(ok|FAIL|---)'
