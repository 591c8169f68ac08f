#!/usr/bin/env bash
# Compares real work in a scopefs view with the same work in the directory itself and in other FUSE layers: bindfs,
# go-fuse's loopback, and libfuse's passthrough_hp if it is in PATH. The work: clones, builds, installations, archives,
# databases, watching. One run, interleaved rounds, medians, as a Markdown table. Usage, as root:
#
#	work.sh [-rounds N] [-only TEXT] [-nopeers | -history | -roots] [-archived N] [-cold] [-smoke]
#
# -only picks rows by a part of their name; -nopeers leaves the other layers out; -history compares views with changes: kept and held
# with one with changes: direct instead, also in single operations, and times the commands about
# changes; -roots compares the view of an agent with a second root with that of one
# without, while a sandbox of each runs; -archived is the number of files of tar, find and rm; -cold drops the kernel's caches
# before each timed run, without it they are as the preparation leaves them, which goes through the same mount; -smoke is
# all of it once, in sizes that measure nothing. If another layer cannot do a row's work, its column says "failed", and
# standard error says why. SCOPEFS_BENCH_DIR names the directory to work in, default /dev/shm.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=3 only= nopeers= history= roots= cold=
files=10000 dirs=500 archived=20000 rewritten=10000 packages=300 transactions=10000 events=1000 modules=50 changes=20 changed=1000 forked=200000 module=(HEAD) what=./... checks=()
while [ $# -gt 0 ]; do
	case $1 in
	-rounds | -only | -archived)
		[ $# -ge 2 ] || { echo "$1 wants a value" >&2; exit 2; }
		declare "${1#-}=$2"
		shift
		;;
	-nopeers) nopeers=1 ;;
	-history) nopeers=1 history=1 archived=50000 ;;
	-roots) nopeers=1 roots=1 ;;
	-cold) cold=1 ;;
	-smoke)
		rounds=1 files=200 dirs=10 archived=400 rewritten=100 packages=2 transactions=100 events=20 modules=2 changes=1 changed=20 forked=200
		module=(--add-virtual-file="small/small.go:package small" HEAD go.mod go.sum) what=./small
		checks=(--lib es5 --skipLibCheck)
		;;
	*) sed -n '2,/^set/s/^#\( \|$\)\?//p' integration/bench/work.sh >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GOTOOLCHAIN=local

# Each workload is a function do_NAME, which is timed, and mostly a before_NAME, which is not. Both run in a directory of
# the side that is measured; it is empty before the first round, and keeps what earlier rounds left.

# repositories makes $top/loose.git and $top/packed.git, the same history, once.
repositories() {
	[ ! -d "$top/packed.git" ] || return 0
	local src=$top/tree i
	local as=(-c user.name=bench -c user.email=bench@localhost -c gc.auto=0)
	"$top/bench" tree "$files" "$dirs" "$src"
	git -C "$src" -c init.defaultBranch=main init -q
	for i in 1 2 3; do
		find "$src" -name '*7.txt' -exec sed -i "\$ a revision $i" {} +
		git -C "$src" "${as[@]}" add .
		git -C "$src" "${as[@]}" commit -q -m "revision $i"
	done
	mv "$src/.git" "$top/loose.git"
	git -C "$top/loose.git" config core.bare true
	git clone -q --bare --no-local "$top/loose.git" "$top/packed.git"
	rm -rf "$src"
}
repository() { repositories; [ -d "$1" ] || cp -a "$top/$1" .; }

before_clone_copy() { repository packed.git; rm -rf clone; }
do_clone_copy() { git clone -q --no-hardlinks packed.git clone; }
before_clone_link() { repository loose.git; rm -rf clone; }
do_clone_link() { git clone -q loose.git clone; }

cloned() { [ -d clone ] || { before_clone_copy; do_clone_copy; }; }
before_status() { cloned; do_status; }
do_status() {
	local changed
	changed=$(git -C clone status --porcelain)
	equals "" "$changed"
}
before_grep() { cloned; do_grep; }
do_grep() { # one file in a hundred holds the word
	local found
	found=$(grep -r --exclude-dir=.git -l scopefs-needle clone | wc -l)
	equals $((files / 100)) "$found"
}

before_build() {
	if [ ! -e "$top/module.tar" ]; then
		mkdir "$top/module"
		git -C "$here" archive "${module[@]}" | tar x -C "$top/module"
		(cd "$top/module"; GOWORK=off GOFLAGS=-mod=mod go mod vendor)
		tar cf "$top/module.tar" -C "$top" module
		rm -rf "$top/module"
	fi
	[ -d module ] || tar xf "$top/module.tar"
	rm -rf cache
}
do_build() {
	export GOCACHE=$PWD/cache GOFLAGS="-mod=vendor -buildvcs=false" GOPROXY=off GOWORK=off CGO_ENABLED=0
	cd module
	go build "$what"
}

before_npm() {
	[ -d "$top/packages" ] || "$top/bench" packages "$packages" "$top/packages"
	[ -d app ] || cp -a "$top/packages" app
	rm -rf app/node_modules app/package-lock.json cache
}
do_npm() {
	local installed
	cd app
	npm_config_cache=$PWD/../cache npm install --offline --no-audit --no-fund --loglevel=error
	installed=$(find node_modules -mindepth 2 -maxdepth 2 -name package.json | wc -l)
	equals "$packages" "$installed"
}

archive() {
	[ ! -e "$top/tree.tar" ] || return 0
	"$top/bench" tree "$archived" $((archived / 20)) "$top/tree"
	tar cf "$top/tree.tar" -C "$top" tree
	rm -rf "$top/tree"
}
before_tar() { archive; rm -rf tree; }
do_tar() { tar xf "$top/tree.tar"; }
before_find() { archive; [ -d tree ] || do_tar; do_find; }
do_find() {
	local found
	found=$(find tree -type f | wc -l)
	equals "$archived" "$found"
}
before_rm() { before_tar; do_tar; }
do_rm() { rm -rf tree; }

before_rewrite() {
	rm -rf files
	mkdir files
	seq "$rewritten" | awk '{ f = "files/" $1; printf "%4096d", $1 > f; close(f) }'
}
do_rewrite() { "$top/bench" rewrite "$rewritten" files; }

# inserts makes $top/inserts.sql, in which each is a transaction of its own.
inserts() {
	rm -f db*
	[ -e "$top/inserts.sql" ] || {
		echo "CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);"
		seq "$transactions" | awk '{ printf "INSERT INTO t VALUES(%d, \"what row %d is about, in a few words\");\n", $1, $1 }'
		echo "SELECT count(*) FROM t;"
	} >"$top/inserts.sql"
}
# transact PRAGMAS MODE: fails when the journal is of another mode, or rows are missing.
transact() {
	local said
	said=$(sqlite3 -bail -batch -cmd "$1" db <"$top/inserts.sql")
	equals "$2 $transactions" "${said//$'\n'/ }"
}
before_wal() { inserts; }
do_wal() { transact "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" wal; }
before_journal() { inserts; }
do_journal() { transact "PRAGMA synchronous=OFF; PRAGMA journal_mode;" delete; }

before_inotify() { rm -rf watched; mkdir watched; }
do_inotify() { "$top/bench" inotify "$events" watched >&3; }

tsc=$top/typescript/node_modules/typescript/bin/tsc
before_tsc() {
	rm -rf project
	"$top/bench" typescript "$modules" project
}
do_tsc() { "$top/bench" rebuild "$changes" project/src/m00.ts node "$tsc" --watch --preserveWatchOutput -p project "${checks[@]}" >&3; }
can_tsc() {
	mkdir -p "$top/typescript"
	npm install --prefix "$top/typescript" --no-audit --no-fund typescript@5 >"$top/said" 2>&1 && [ -e "$tsc" ]
}

# lost REASON: the side is out of the row. The scripts end if it is not a peer.
lost() {
	[[ $side != native && $side != scopefs && -z $history ]] || fail "$@"
	echo "bench: $*" >&2
	echo failed >"$all/$side.lost"
	forget 2 # passthrough_hp then closes descriptors
}
failed=lost

# row NAME TEXT: measures one workload on all sides and prints its line.
row() {
	local name=$1 text=$2 side r i line first= all=$top/times
	[[ $text == *"$only"* ]] || return 0
	if [ "$(type -t "can_$name")" = function ] && ! "can_$name"; then
		echo "$text: skipped, cannot be installed here" >&2
		return 0
	fi
	rm -rf "$all"
	mkdir "$all"
	for side in "${sides[@]}"; do mkdir "${dir[$side]}/work"; done
	for ((r = 0; r < rounds; r++)); do
		for ((i = 0; i < ${#sides[@]}; i++)); do
			side=${sides[(i + r) % ${#sides[@]}]} # nobody is always first
			[ ! -e "$all/$side.lost" ] || continue
			cd "${dir[$side]}/work"
			[ "$(type -t "before_$name")" != function ] || attempt "before_$name"
			[ ! -e "$all/$side.lost" ] || continue
			sync -f "$top"
			[ -z "$cold" ] || forget 3
			attempt "do_$name"
			echo "$micros" >>"$all/$side"
		done
	done
	cd "$top"
	for side in "${sides[@]}"; do
		rm -rf "${dir[$side]}/work"
		if [ -e "$all/$side.lost" ]; then
			line+=" failed |"
			continue
		fi
		micros=$(median <"$all/$side")
		line+=" $([ -z "$first" ] && show "$micros" || ratio "$micros" "$first") |"
		[ -z "$first" ] || echo "$micros $side" >>"$all/layers"
		first=${first:-$micros}
	done
	[ -n "$nopeers" ] || line+=" $(sort -n "$all/layers" | awk 'NR == 1 { print $2 }') |"
	echo "| $text |$line" | tee -a "$top/table"
}

# bar NAME TEXT: the median time of the command do_NAME, after before_NAME and without the time of scopefs version.
bar() {
	local name=$1 text=$2 r version
	[[ $text == *"$only"* ]] || return 0
	: >"$top/bar"
	for ((r = 0; r < rounds; r++)); do
		[ "$(type -t "before_$name")" != function ] || attempt "before_$name"
		sync -f "$top"
		attempt "$top/scopefs" version
		version=$micros
		attempt "do_$name"
		echo $((micros - version)) >>"$top/bar"
	done
	echo "| $text | $(show "$(median <"$top/bar")") |"
}
appended() { local i; mkdir -p "$1"; for ((i = 0; i < changed; i++)); do echo text >>"$1/$i"; done; }

before_undo() {
	appended "${dir[kept]}/undone"
	"$top/scopefs" checkpoint --base "$top/base" kept "before$r"
	appended "${dir[kept]}/undone"
}
do_undo() { "$top/scopefs" undo --base "$top/base" kept --checkpoint "before$r"; }
before_commit() { echo "$r" >>"${dir[held]}/committed"; }
do_commit() { "$top/scopefs" commit --base "$top/base" held; }
before_stat() { appended "${dir[held]}/listed"; }
do_stat() { "$top/scopefs" diff --base "$top/base" --stat held; }
do_fork() { "$top/scopefs" branch --base "$top/base" held "few$r"; }
before_fork_many() { [ -d "$top/base/agents/held/many" ] || "$top/bench" tree "$forked" $((forked / 20)) "$top/base/agents/held/many"; }
do_fork_many() { "$top/scopefs" branch --base "$top/base" held "many$r"; }

start_sides
columns=("${sides[@]}")
[ -n "$nopeers" ] || columns+=(fastest)
{
	printf '| workload |%s\n' "$(printf ' %s |' "${columns[@]}")"
	printf '|---|%s\n' "$(printf -- '---|%.0s' "${columns[@]}")"
} | tee "$top/table"
row clone_copy "git clone --no-hardlinks, $files files, packed"
row clone_link "git clone, $files files, loose objects linked"
row status "git status, again"
row grep "grep -r in the clone"
row build "go build $what, cold cache"
row npm "npm install, $packages packages, offline, cold cache"
row tar "tar x, $archived files"
row rewrite "open, write a byte, close, $rewritten files of 4 KiB"
row find "find -type f, $archived files"
row rm "rm -rf, $archived files"
row wal "SQLite, $transactions transactions, WAL, synchronous=NORMAL"
row journal "SQLite, $transactions transactions, journal, synchronous=OFF"
row inotify "inotify, from write to event, $events times"
row tsc "tsc --watch, from write to rebuilt, $changes times"
if [ -n "$history" ]; then
	for side in "${sides[@]}"; do singles+=("$side=${dir[$side]}"); done
	for operation in "create + write" rename mkdir; do
		[[ $operation != *"$only"* ]] || "$top/bench" -rounds "$((rounds * 3))" -only "$operation" "${singles[@]}" | tail -n +3
	done
	printf '\n| command, without the time of scopefs version | time |\n|---|---|\n'
	bar undo "undo of $changed appended files"
	bar commit "commit of one file"
	bar fork "fork of a directory with few files"
	bar fork_many "fork of a directory with $forked files"
	bar stat "diff --stat of $changed held files"
	exit 0
fi
[ -z "$roots" ] || exit 0
[ -n "$nopeers" ] || summary <"$top/table"
chart work "Real work, × native"
