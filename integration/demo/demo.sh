#!/usr/bin/env bash
# The demo: two agents, real work in a sandbox, and attempts to escape from it. Its files are in ./demo and stay for
# inspection. Its processes and mounts are removed at the end, also after a failure. Run by make demo.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=integration/demo
bin=$PWD/bin/scopefs
demo=$PWD/demo
base=$demo/base
agent=research-01
project=github.com/spf13/pflag # the module that the agent works on: one of our own dependencies
compiling="-trimpath -gcflags=all=-dwarf=false" # as make build: the standard library is compiled once

fail() { echo "demo: $*" >&2; exit 1; }
root() { [ "$(id -u)" -eq 0 ]; }

exec 9<"$0"
flock -n 9 || fail "another demo is running in this checkout"
[ -r /dev/fuse ] && [ -w /dev/fuse ] || fail "needs /dev/fuse, readable and writable: modprobe fuse, or run as root"
# What the agent has compiled stays for its next demo.
compiled=$PWD/bin/demo-compiled
[ ! -d "$base/agents/$agent/.cache" ] || { rm -rf "$compiled" && mv "$base/agents/$agent/.cache" "$compiled"; }
rm -rf --one-file-system "$demo"
mkdir -p "$demo"
export SCOPEFS_BASE=$base SCOPEFS_RUN=$base/run
daemon=
elsewhere=

stop() {
	local pid=$daemon
	daemon=
	[ -n "$pid" ] || return 0
	kill -INT "$pid" 2>/dev/null || true # SIGTERM would leave the views to another daemon
	wait "$pid"
}
cleanup() {
	stop || true
	[ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
	[ -z "$elsewhere" ] || rm -rf --one-file-system "$elsewhere"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

now() { echo $((${EPOCHREALTIME/./} / 1000)); }   # milliseconds
seconds() { printf '%d.%03d s' $(($1 / 1000)) $(($1 % 1000)); }
line() { printf '  %-62s %-7s %s\n' "$1" "$2" "$3"; }

# step WHAT COMMAND...: runs COMMAND and prints one line, with its output if it failed.
step() {
	local what=$1 start said code=0
	shift
	start=$(now)
	said=$("$@" 2>&1 9>&-) || code=$?
	if [ $code -ne 0 ]; then
		line "$what" FAILED "$(seconds $(($(now) - start)))"
		tail -n 20 <<<"$said" >&2
		fail "$what: exit status $code"
	fi
	line "$what" ok "$(seconds $(($(now) - start)))"
}

# inside SCRIPT: runs SCRIPT in the agent's sandbox; work does so in the module's directory.
inside() { "$bin" run -T "$agent" -- sh -ec "$1" </dev/null 9>&-; }
work() { "$bin" run -T -C project "$agent" -- sh -ec "$1" </dev/null 9>&-; }
has() { inside "$1" >/dev/null 2>&1; }

# reachable PATH: whether the agents' user can reach PATH. The sandbox gives no more access than the host.
reachable() { ! root || setpriv --reuid 1000 --regid 1000 --clear-groups test -r "$1"; }

# left lists remaining mounts, in any process's namespace, and processes of this demo.
left() {
	grep -ls "scopefs:\($agent\|writer-02\)" /proc/[0-9]*/mountinfo
	find /proc -maxdepth 2 -name exe -lname "$bin*" 2>/dev/null
}

# standard DIRECTORY: fills a cache of Go's with the packages of the standard library that the project needs, from the caller's cache.
# An entry is two files: one that ends in -a has the name of the other, which ends in -d.
standard() {
	local cache outputs
	cache=$(go env GOCACHE)
	outputs=$(GOFLAGS=$compiling CGO_ENABLED=0 go list -deps -test -export -f '{{if .Standard}}{{.Export}}{{end}}' "$project" | sed -n 's,.*/\([0-9a-f]*\)-d$,\1,p')
	mkdir -p "$1"
	(cd "$cache" && { grep -rlFf - --include='*-a' . <<<"$outputs" && sed 's,^\(..\).*,\1/&-d,' <<<"$outputs"; } | xargs cp --parents -t "$1")
}

lay_out() {
	mkdir -p "$base/agents.d" "$base/agents/$agent"/{reference,project} "$base/agents/writer-02" "$demo/outside"
	# A separate module, so that go build ./... of the repository skips it.
	echo "module demo" >"$demo/go.mod"
	cp $here/agents.d/*.md "$base/agents.d"
	mkdir -p "$base/skills/house-style"
	printf -- '---\nname: house-style\ndescription: How we write.\n---\nShort sentences.\n' >"$base/skills/house-style/SKILL.md"
	root || sed -i '/^user:/d' "$base/agents.d"/*.md # without root all files belong to the caller
	canary="canary-$RANDOM$RANDOM"
	echo "$canary of the host" >"$demo/outside/secret"
	echo "$canary of writer-02" >"$base/agents/writer-02/notes.txt"
	cd "$base/agents/$agent"
	echo "TOKEN=$canary" >.env
	echo "Do not change me." >reference/paper.txt
	ln -s "$demo/outside/secret" planted
	ln -s ../writer-02 planted-dir
	cd - >/dev/null
	cp -r "$(go mod download -json "$project" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p')/." "$base/agents/$agent/project"
	chmod -R u+w "$base/agents/$agent/project"
	if [ -d "$compiled" ]; then
		mv "$compiled" "$base/agents/$agent/.cache"
	else
		standard "$base/agents/$agent/.cache/go-build"
	fi
	root && chown -R -h 1000:1000 "$base/agents/$agent" "$base/agents/writer-02"
	chmod 700 "$base/agents/$agent" "$base/agents/writer-02"
}

# settings writes scopefs.yaml. Every sandbox has a Go below /usr. A Go, or a mount point, that only root can reach is put
# where the agents can reach it.
settings() {
	local goroot
	goroot=$(go env GOROOT)
	if ! reachable "$demo"; then
		elsewhere=$(mktemp -d /run/scopefs-demo.XXXXXX)
		chmod 755 "$elsewhere"
		export SCOPEFS_RUN=$elsewhere/run
	fi
	if ! reachable "$goroot/bin/go"; then
		mkdir -p "$elsewhere/go"
		cp -r "$goroot"/{bin,lib,pkg,src,go.env,VERSION} "$elsewhere/go"
		goroot=$elsewhere/go
	fi
	{
		echo "stores: {kv: {}, sql: {}, messages: {}}"
		echo "sandbox:"
		case $goroot in /usr/*) ;; *) echo "  expose: ['$goroot']" ;; esac
		echo "  env:"
		echo "    PATH: $goroot/bin:/usr/local/bin:/usr/bin:/bin"
		echo "    GOCACHE: /workspace/.cache/go-build"
		printf '    %s\n' "GOFLAGS: -mod=mod $compiling" 'GOPROXY: "off"' "GOTOOLCHAIN: local" 'CGO_ENABLED: "0"'
		for who in AUTHOR COMMITTER; do printf "    GIT_${who}_%s\n" "NAME: $agent" "EMAIL: $agent@localhost"; done
	} >"$base/scopefs.yaml"
}

start() {
	local flags=()
	[ ! -x "$bin-console" ] || flags=(--console 127.0.0.1:0)
	"$bin" daemon "${flags[@]}" 2>"$demo/daemon.log" 9>&- &
	daemon=$!
	for _ in {1..100}; do
		[ "$("$bin" ps 2>/dev/null | grep -c ' mounted ')" = 2 ] && return 0
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.1
	done
	cat "$demo/daemon.log" >&2
	fail "the daemon did not mount the views"
}

pid_of_view() { "$bin" ps | awk -v a="$agent" '$1 == a && $2 == "mounted" { print $3 }'; }

# remount kills the view's process and waits for the new view.
remount() {
	local old new="" start took
	old=$(pid_of_view)
	start=$(now)
	kill -9 "$old"
	for _ in {1..200}; do
		new=$(pid_of_view)
		[ -n "$new" ] && [ "$new" != "$old" ] && break
		sleep 0.01
	done
	took=$(($(now) - start))
	[ -n "$new" ] && [ "$new" != "$old" ] && [ $took -lt 1000 ] && [ "$(inside 'cat reference/paper.txt')" = "Do not change me." ] ||
		fail "the view was not back within a second of its process being killed ($took ms)"
	line "kill -9 of the view's process: the view is back" ok "$(seconds $took)"
}

# pictures keeps pictures of the console's pages, if the host has a browser that starts.
pictures() {
	local began said
	began=$(now)
	if [ ! -x "$bin-console" ]; then
		return
	elif ! command -v chromium >/dev/null; then
		line "pictures of the console: chromium is not installed" none ""
	elif said=$("$bin" console 9>&- | timeout 60 go run ./integration/demo "$demo/console" 2>&1 9>&-); then
		line "pictures of the console are in $demo/console" ok "$(seconds $(($(now) - began)))"
	else
		line "pictures of the console: $(tail -n 1 <<<"$said")" none ""
	fi
}

echo "Two agents, $agent and writer-02, below $base"
lay_out
settings
if root; then
	began=$(now)
	start
	line "daemon started, both views mounted" ok "$(seconds $(($(now) - began)))"
	if [ -x "$bin-console" ]; then
		echo "  The console, while the demo runs: $("$bin" console 9>&-)"
	else
		line "the console: make build builds it" none ""
	fi
else
	line "no daemon: each command mounts its view in namespaces of its own" ok ""
fi

echo
echo "$agent works, in its sandbox, on the source of $project:"
step "git: init, three commits, log, status" work '
	git init -q -b main
	git add README.md LICENSE go.mod && git commit -q -m "say what it is"
	git add -- $(ls *.go | grep -v _test.go) && git commit -q -m "the package"
	git add -A && git commit -q -m "its tests"
	test "$(git log --oneline | wc -l)" = 3 && test -z "$(git status --porcelain)" && git fsck --strict'
step "go build ./..., offline" work 'go build ./...'
step "go test ./..." work 'go test -vet=off ./...'
step "edit, git diff, commit, git bisect over four commits" work '
	echo "// bisect-me" >>flag.go && git diff --stat | grep -q flag.go && git commit -qam "a change"
	git bisect start HEAD HEAD~3 && git bisect run sh -c "! grep -q bisect-me flag.go" >found
	grep -q "$(git rev-parse main) is the first bad commit" found && git bisect reset && rm found'
step "tar there and back, the same files, modes and times" work '
	tar -cf ../p.tar . && mkdir ../copy && tar -xpf ../p.tar -C ../copy && diff -r . ../copy && tar -df ../p.tar
	rm -r ../copy ../p.tar'
step "find sees what git has" work 'test "$(find . -name "*.go" | wc -l)" = "$(git ls-files "*.go" | wc -l)"'
step "flock: four writers count to 100" inside '
	echo 0 >counter
	for w in 1 2 3 4; do
		(for i in $(seq 25); do flock counter.lock sh -c "echo \$((\$(cat counter) + 1)) >n; cat n >counter"; done) & done
	wait; test "$(cat counter)" = 100'
if has 'python3 -c "import venv"'; then
	step "python3 -m venv" inside 'python3 -m venv --without-pip venv && venv/bin/python -c "import json"'
fi
if has 'npm --version'; then
	step "npm pack, npm install of the tarball, node uses it" inside '
		mkdir -p npm/lib npm/app && cd npm/lib && echo "{\"name\":\"lib\",\"version\":\"1.0.0\"}" >package.json
		echo "module.exports = 42" >index.js && npm pack --silent && cd ../app && echo "{\"private\":true}" >package.json
		npm install --offline --no-audit --no-fund ../lib/lib-1.0.0.tgz && node -e "process.exit(require(\"lib\") === 42 ? 0 : 1)"'
fi
if has 'sqlite3 --version'; then
	step "sqlite3: a WAL database, 10,000 rows" inside '
		sqlite3 t.db "pragma journal_mode=wal; create table t(n); with recursive c(n) as (select 1 union all select n+1 from c where n<10000) insert into t select n from c;"
		test "$(sqlite3 t.db "select sum(n) from t; pragma integrity_check;" | tr "\n" " ")" = "50005000 ok "'
fi
sums() { inside 'find project \( -type f -o -type l \) -exec sha256sum {} + | sort | sha256sum'; }
taken_back() {
	local before
	before=$(sums)
	inside 'rm -rf project'
	"$bin" undo "$agent" --session last
	[ "$(sums)" = "$before" ] && work 'git fsck && test -z "$(git status --porcelain)"'
}
step "rm -rf project, and scopefs undo: every file, git fsck" taken_back
step "the host sees the same files" test -d "$base/agents/$agent/project/.git"
step "writer-02 sees its own files and no others" bash -c '[ "$("$0" run -T writer-02 -- ls -A)" = notes.txt ]' "$bin"
if root; then remount; fi

echo
. $here/escapes.sh

echo
. $here/tools.sh

echo
echo "scopefs audit --denied"
"$bin" audit --denied

echo
if root; then
	pictures
	began=$(now)
	stop || fail "the daemon ended with an error: $(tail -n 3 "$demo/daemon.log")"
	line "daemon stopped" ok "$(seconds $(($(now) - began)))"
fi
cleanup
for _ in {1..30}; do
	[ -z "$(left || true)" ] && break
	sleep 0.1
done
[ -z "$(left || true)" ] || fail "something is left mounted or running: $(left)"
line "nothing is left mounted or running" ok ""
echo "  The agents' files, the log and scopefs.yaml are in $demo until make clean."
