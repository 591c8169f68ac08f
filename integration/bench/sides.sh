# Sourced by the scripts here, from the top of the checkout and under set -euo pipefail. Makes a directory $top, which is
# removed at the end, whatever happens, together with all that was started and mounted in it. It is on tmpfs, or in
# SCOPEFS_BENCH_DIR, to measure a disk. SCOPEFS_BENCH_BUSY is a number of processes that compete for the processors.
fail() { echo "bench: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "needs root"
here=$PWD
top=$(mktemp -d "${SCOPEFS_BENCH_DIR:-/dev/shm}/scopefs-bench-XXXXXX")
daemon= loopback= busy=()
export LC_ALL=C

mounts() { awk -v top="$top/" 'index($2, top) == 1 { print $2 }' /proc/mounts; }

stop_daemon() {
	local pid=$daemon
	daemon=
	[ -n "$pid" ] || return 0
	kill -INT "$pid" 2>/dev/null || true
	wait "$pid" || true
	[ ! -d "$top/base" ] || "$top/scopefs" daemon --stop --base "$top/base" || true # views of one that has died
}

cleanup() {
	local mount
	trap '' INT TERM # once is enough
	cd /
	[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true # a client may have ended
	stop_daemon
	for mount in $(mounts); do
		umount "$mount" || umount -l "$mount" || true
	done
	[ -z "$loopback" ] || wait "$loopback" || true
	rm -rf --one-file-system "$top"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# await WHAT PID TEST...: waits a minute for the test, as long as the process lives.
await() {
	local what=$1 pid=$2
	shift 2
	for _ in {1..600}; do
		"$@" && return
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	cat "$top/log" >&2
	fail "$what did not come"
}
mounted() { grep -q " $1 " /proc/mounts; }
serves() { [ "$(grep -c "^scopefs:[^ ]* $top/" /proc/mounts)" -eq "$1" ]; }

build() {
	go build -o "$top/bench" ./integration/bench
	core "$top"
	CGO_ENABLED=0 go build -trimpath -o "$top/scopefs-stores" ./cmd/scopefs-stores
}

# core DIR: builds the programs of the main module, which need each other.
core() {
	local dir programs=()
	for dir in ./cmd/*; do
		[ -e "$dir/go.mod" ] || programs+=("$dir")
	done
	CGO_ENABLED=0 go build -trimpath -o "$1/" "${programs[@]}"
}

# agent NAME [RULES [LINE]]: defines an agent. Half of the rules hold wildcards; none matches a file of ours. The line is
# added to the definition.
agent() {
	mkdir -p "$top/base/agents.d" "$top/base/agents/$1"
	{
		printf -- '---\nname: %s\ndescription: measured\n' "$1"
		[ "${2:-0}" -eq 0 ] || printf 'view:\n  paths:\n'
		seq "${2:-0}" | awk '{ printf NR % 2 ? "    \"rule-%04d/private\": read\n" : "    \"**/*.rule-%04d\": hide\n", $1 }'
		[ -z "${3:-}" ] || printf '%s\n' "$3"
		printf -- '---\n'
	} >"$top/base/agents.d/$1.md"
}

# start_daemon VIEWS [COMMAND...]: mounts them; the command, such as prlimit, starts the daemon.
start_daemon() {
	local count=$1
	shift
	"$@" "$top/scopefs" daemon --base "$top/base" 2>"$top/log" & daemon=$!
	await "$count views" "$daemon" serves "$count"
}

# start_peers mounts bindfs, go-fuse's loopback and libfuse's passthrough_hp, if that is installed, and adds them to $sides.
start_peers() {
	mkdir "$top"/{loopback,bindfs,passthrough_hp}{,.d}
	CGO_ENABLED=0 go build -o "$top/go-fuse-loopback" github.com/hanwen/go-fuse/v2/example/loopback
	bindfs "$top/bindfs.d" "$top/bindfs"
	"$top/go-fuse-loopback" -q "$top/loopback" "$top/loopback.d" >"$top/log" 2>&1 & loopback=$!
	await loopback "$loopback" mounted "$top/loopback"
	sides+=(bindfs loopback)
	if ! command -v passthrough_hp >/dev/null; then
		echo "passthrough_hp: not installed (how to have it: integration/bench/passthrough_hp.sh DIR, with DIR in PATH)" >&2
		return
	fi
	( # it has a descriptor open for each inode
		ulimit -n "$(cat /proc/sys/fs/nr_open)" 2>/dev/null || ulimit -n "$(ulimit -Hn)"
		exec passthrough_hp "$top/passthrough_hp.d" "$top/passthrough_hp"
	)
	sides+=(passthrough_hp)
}

# start_sides mounts a view and, unless $nopeers is set, its peers. $sides are the names, the directory itself first and
# scopefs last, $dir their directories. With $history these are three views,
# with $roots two.
start_sides() {
	local side
	build
	if [ -n "${history:-}" ]; then
		sides=(direct kept held)
		declare -gA dir
		for side in "${sides[@]}"; do
			agent "$side" 0 "view: {changes: $side}"
			dir[$side]=$top/base/run/views/$side
		done
		start_daemon 3
		return
	fi
	if [ -n "${roots:-}" ]; then
		sides=(alone beside)
		declare -gA dir
		mkdir "$top/second"
		agent alone
		agent beside 0 "view: {roots: [{dir: $top/second}]}"
		start_daemon 3 # the second root is one
		for side in "${sides[@]}"; do
			dir[$side]=$top/base/run/views/$side
			"$top/scopefs" --base "$top/base" run "$side" -- sleep infinity >"$top/log.$side" 2>&1 & busy+=($!)
		done
		return
	fi
	mkdir "$top/native"
	sides=(native)
	[ -n "$nopeers" ] || start_peers
	agent bench
	start_daemon 1
	sides+=(scopefs)
	declare -gA dir
	for side in "${sides[@]}"; do dir[$side]=$top/$side; done
	dir[scopefs]=$top/base/run/views/bench
	while [ ${#busy[@]} -lt "${SCOPEFS_BENCH_BUSY:-0}" ]; do
		while :; do :; done & busy+=($!)
	done
}

# chart NAME TITLE draws $top/table to bin/NAME.svg, as make charts draws the tables of docs/performance.md.
chart() {
	[ "$(wc -l <"$top/table")" -gt 2 ] || return 0
	mkdir -p bin
	"$top/bench" chart "$2" <"$top/table" >"bin/$1.svg"
	echo "chart: bin/$1.svg" >&2
}

# summary reads a Markdown table whose last column names the fastest layer of each row, and prints where that is scopefs.
summary() {
	awk -F' *[|] *' 'NR > 2 { if ($(NF - 1) == "scopefs") first++; else others = others "; " $2 " (" $(NF - 1) ")" }
		END { if (NR > 2) print "\nscopefs is the fastest layer in " (first + 0) " of " (NR - 2) " rows" (others ? "; others: " substr(others, 3) : "") }'
}

# attempt COMMAND...: runs it, with what it says in $top/said and the time in $micros, in microseconds. A command that
# measures itself writes its time to descriptor 3. When it fails, $failed gets the reason; by default all fails.
failed=fail
attempt() {
	local code began
	set +e # the command has a set -e of its own, which an || would turn off
	began=${EPOCHREALTIME/./}
	(set -e; "$@") </dev/null >"$top/said" 2>&1 3>"$top/micros"
	code=$?
	micros=$((${EPOCHREALTIME/./} - began))
	set -e
	if [ $code -ne 0 ]; then
		tail -n 30 "$top/said" >&2
		$failed "$* in $PWD: exit status $code"
	fi
	[ ! -s "$top/micros" ] || micros=$(<"$top/micros")
}

# equals WANT GOT: fails, and says so, when they differ.
equals() { [ "$1" = "$2" ] || { echo "got '$2', want '$1'"; return 1; }; }

# forget N: writes N to drop_caches(5), so that the kernel forgets names and inodes (2) and what files hold (3).
forget() { sync -f "$top"; echo "$1" >/proc/sys/vm/drop_caches; }

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int(NR / 2) + 1] }'; }

# show MICROSECONDS: in the unit that fits.
show() {
	awk -v t="$1" 'BEGIN { if (t < 1e3) printf "%.1f µs", t; else if (t < 1e6) printf "%.1f ms", t / 1e3; else printf "%.2f s", t / 1e6 }'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f×", a / b }'; }
