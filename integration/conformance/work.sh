#!/usr/bin/env bash
# Usage, as root: work.sh [-native] [-only TEXT] [-view LINE]
# Does real work in a view, as a process of the host with the agent's uid, and again in the agent's sandbox by scopefs run:
# git, go, npm, python, SQLite, tar, rsync, make. It needs no network and no sources: it works on this repository and on
# packages that it makes. A job whose command is missing is skipped. A test is a place and a job, as in "sandbox git".
set -euo pipefail
cd "$(dirname "$0")/../.."
. integration/conformance/view.sh
[ $# -eq 0 ] || usage
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GOTOOLCHAIN=local
who=60001
goroot=$(go env GOROOT)
path=$goroot/bin:/usr/local/bin:/usr/bin:/bin

# Each job is a script for sh -eu. It begins in an empty directory of the view; ../input has what is prepared below.
declare -A jobs=(
	[git]='
		git init -q a
		cd a
		git fetch -q ../../input/repo.git "+refs/heads/*:refs/heads/*"
		git config user.name w; git config user.email w@localhost
		git checkout -q -b topic "$(git for-each-ref --count=1 --format="%(refname)")~3"
		for i in 1 2 3 4 5; do echo $i >>README.md; echo $i >new-$i; git add -A; git commit -q -m "change $i"; done
		git rebase -q HEAD~2
		git mv new-1 moved; git commit -q -m moved
		git merge -q -s ours -m merged "$(git for-each-ref --count=1 --format="%(refname)")"
		git repack -q -a -d; git gc -q --aggressive --prune=now
		git fsck --strict --no-dangling
		test -z "$(git status --porcelain)"'
	[stash]='
		git init -q a; cd a; git config user.name w; git config user.email w@localhost
		echo 1 >f; git add f; git commit -q -m one
		echo 2 >f; git stash -q; grep -qx 1 f
		git stash pop -q; grep -qx 2 f'
	[worktree]='
		git init -q a
		git -C a fetch -q ../../input/repo.git "+refs/heads/*:refs/heads/*"
		git -C a worktree add -q ../b "$(git -C a for-each-ref --count=1 --format="%(objectname)")"
		test -z "$(git -C b status --porcelain)"
		git -C a worktree remove ../b'
	[clone]='
		git clone -q --no-hardlinks "$ROOT/input/repo.git" a
		git clone -q a b
		test "$(git -C a rev-parse HEAD)" = "$(git -C b rev-parse HEAD)"
		echo more >>b/README.md; git -C b -c user.name=w -c user.email=w@localhost commit -q -a -m more
		git -C a pull -q ../b; test -z "$(git -C a status --porcelain)"'
	[go]='
		cp -r ../input/module .; cd module
		go build ./audit ./scope ./internal/...
		go vet ./scope
		go test -short ./internal/printable ./internal/frontmatter'
	[npm]='
		cp -r ../input/packages app; cd app
		npm install --offline --no-audit --no-fund --loglevel=error
		test "$(find node_modules -mindepth 2 -maxdepth 2 -name package.json | wc -l)" = 50
		npm ls >/dev/null
		rm -rf node_modules
		npm ci --offline --no-audit --no-fund --loglevel=error
		test "$(find node_modules -mindepth 2 -maxdepth 2 -name package.json | wc -l)" = 50'
	[python3]='
		if python3 -c "import ensurepip" 2>/dev/null; then python3 -m venv v; v/bin/python -m pip --version; else python3 -m venv --without-pip v; fi
		mkdir -p p/q; for i in $(seq 50); do echo "x = $i" >p/q/m$i.py; done
		v/bin/python -m compileall -q p
		cd p; ../v/bin/python -c "
import importlib, mmap, os, tempfile
assert sum(importlib.import_module(\"q.m%d\" % i).x for i in range(1, 51)) == 1275
with tempfile.NamedTemporaryFile(dir=\".\") as f:
    f.write(bytes(8192)); f.flush()
    m = mmap.mmap(f.fileno(), 8192); m[4096:4100] = b\"here\"; m.flush(); m.close()
    assert os.pread(f.fileno(), 4, 4096) == b\"here\"
"'
	[sqlite3]='
		for mode in wal delete truncate persist; do
			sqlite3 -bail $mode.db "PRAGMA journal_mode=$mode; CREATE TABLE t(k INTEGER PRIMARY KEY, w INT, v TEXT);" >/dev/null
			for w in 1 2; do
				for i in $(seq 100); do echo "INSERT INTO t(w, v) VALUES($w, hex(randomblob(500)));"; done |
					sqlite3 -bail -cmd ".timeout 60000" $mode.db &
			done
			wait
			test "$(sqlite3 $mode.db "SELECT count(*) FROM t; PRAGMA integrity_check;" | tr "\n" " ")" = "200 ok "
			sqlite3 $mode.db "DELETE FROM t WHERE k % 2; VACUUM;"
			test "$(sqlite3 $mode.db "SELECT count(*) FROM t; PRAGMA integrity_check;" | tr "\n" " ")" = "100 ok "
		done'
	[tar]='
		tar xf ../input/tree.tar
		tar df ../input/tree.tar
		tar czf again.tar.gz tree
		mkdir again; tar xzf again.tar.gz -C again
		diff -r tree again/tree
		find again -type f -exec sed -i "s/a/b/" {} +
		! diff -rq tree again/tree >/dev/null
		rm -rf tree again'
	[rsync]='
		tar xf ../input/tree.tar
		rsync -aH --delete tree/ copy/
		test -z "$(rsync -aHnic --delete tree/ copy/)"
		find tree -name "*7.txt" -delete; find tree -name "*3.txt" -exec sh -c "echo more >>\"\$1\"" - {} \;
		rsync -aH --delete --inplace tree/ copy/
		test -z "$(rsync -aHnic --delete tree/ copy/)"
		diff -r tree copy'
	[make]='
		for i in $(seq 30); do echo "int f$i(void) { return $i; }" >f$i.c; done
		{ for i in $(seq 30); do echo "int f$i(void);"; done; echo "int main(void) { return f30() - 30; }"; } >main.c
		printf "p: \$(patsubst %%.c,%%.o,\$(wildcard *.c))\n\tgcc -o \$@ \$^\n" >Makefile
		make -s -j4
		./p
		make -q
		touch f1.c
		! make -q
		make -s; ./p; strip p; ./p'
)
needs() {
	case $1 in
	clone | stash | worktree) echo git ;;
	make) echo make gcc ;;
	npm) echo npm node ;;
	*) echo "$1" ;;
	esac
}

# The module with its dependencies, packages of npm, a repository and an archive.
{
	mkdir -p "$top/input/module"
	go build -o "$top/bench" ./integration/bench
	git clone -q --bare --no-local . "$top/input/repo.git"
	git archive HEAD | tar x -C "$top/input/module"
	(cd "$top/input/module" && GOWORK=off GOFLAGS=-mod=mod go mod vendor)
	"$top/bench" packages 50 "$top/input/packages"
	"$top/bench" tree 2000 100 "$top/tree"
	tar cf "$top/input/tree.tar" --owner=":$who" --group=":$who" -C "$top" tree
} >"$top/log" 2>&1 || { cat "$top/log" >&2; fail "preparation: failed: see above"; }

keys=$'user: "60001:60001"\nprotect: [git-hooks, git-config]\nsandbox: {home: temporary}' agent work
{
	echo "sandbox:"
	case $goroot in /usr/*) ;; *) echo "  expose: ['$goroot']" ;; esac
	printf '  env: {PATH: "%s"}\n' "$path"
} >"$base/scopefs.yaml"
lay=$base/agents/work
[ -z "$native" ] || lay=$(in_view work)
cp -r "$top/input" "$lay"
chown -R "$who:$who" "$lay"
start_views
view=$(in_view work)

environment='export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GOTOOLCHAIN=local GOWORK=off GOFLAGS="-mod=vendor -buildvcs=false" GOPROXY=off
	export CGO_ENABLED=0 GOCACHE=$PWD/.cache/go npm_config_cache=$PWD/.cache/npm HOME=${HOME:-/tmp} TMPDIR=/tmp; umask 022; set -eu'

# in_host and in_sandbox run a script in the root of the view.
in_host() { setpriv --reuid "$who" --regid "$who" --clear-groups env -i -C "$view" PATH="$path" ROOT="$view" HOME="$view" LC_ALL=C sh -c "$1"; }
in_sandbox() { "$program" --base "$base" run -T -e ROOT=/workspace work -- sh -c "$1"; }
export -f in_host in_sandbox
export who path view program base

places=(host sandbox)
[ -z "$native" ] || places=(host)
for place in "${places[@]}"; do
	for job in $(printf '%s\n' "${!jobs[@]}" | sort); do
		name="$place $job"
		[[ $name == *"$only"* ]] || continue
		missing=
		for command in $(needs "$job"); do "in_$place" "command -v $command" >/dev/null 2>&1 </dev/null || missing=$command; done
		if [ -n "$missing" ]; then
			echo "$name: $missing is not there" >&2
			skipped "$name"
			continue
		fi
		code=0
		started=$SECONDS
		timed 900 "$top/said" bash -c "in_$place \"\$1\"" - "$environment; mkdir $place-$job; cd $place-$job; ${jobs[$job]}" || code=$?
		if [ $code -eq 0 ]; then
			passed "$name"
		else
			failed "$name" "status $code after $((SECONDS - started)) s"
			tail -n 20 "$top/said" >&2
			[ -n "$native" ] || "$program" --base "$base" audit --denied 2>/dev/null | tail -n 3 >&2 || true
		fi
	done
done
same_views && passed "the view's process" || failed "the view's process" "ended while the work was done"
report integration/conformance/work.expected
