# Sourced by the scripts here, from the top of the checkout and under set -euo pipefail. Reads the options, makes a
# directory $top, builds scopefs, mounts views and compares results with a list of expected failures. At the end, whatever
# happens, it ends what was started, unmounts the views and removes $top.
#
#	-native      run in a directory of $top, without a view, and print the failures without the comparison
#	-only TEXT   run only the tests whose name has the text; the rest of the list is not compared
#	-view LINE   add a line to the view's definition, such as "data: mediated"; may be repeated
#
# SCOPEFS_CONFORMANCE_DIR names the directory to make $top in, default /var/tmp: its file system is below the views.
me=integration/conformance/${0##*/}
fail() { echo "$me: $*" >&2; exit 2; }
usage() { sed -n '2,/^set/s/^#\( \|$\)\?//p' "$me" >&2; exit 2; }

native= only= lines=()
while [ $# -gt 0 ]; do
	case $1 in
	-native) native=1 ;;
	-only | -view)
		[ $# -ge 2 ] || fail "$1: no value: give one"
		[ "$1" = -only ] && only=$2 || lines+=("$2")
		shift
		;;
	-*) usage ;;
	*) break ;;
	esac
	shift
done

[ "$(id -u)" -eq 0 ] || fail "uid $(id -u): not root: run it as root"
daemon= load= began=$SECONDS
top=$(mktemp -d "${SCOPEFS_CONFORMANCE_DIR:-/var/tmp}/scopefs-conformance-XXXXXX")
chmod 755 "$top" # the tests work as other users, too
base=$top/base program=$PWD/bin/scopefs
export LC_ALL=C

# end_load kills the process group of the running test.
end_load() {
	local pid=$load
	load=
	[ -z "$pid" ] || kill -KILL -- "-$pid" 2>/dev/null || true
}

stop_daemon() {
	local pid=$daemon
	daemon=
	[ -n "$pid" ] || return 0
	kill -INT "$pid" 2>/dev/null || true
	for _ in {1..300}; do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
	wait "$pid" || true
	"$program" daemon --stop --base "$base" || true # views of one that was killed
}

cleanup() {
	local mount
	trap '' INT TERM
	cd /
	end_load
	stop_daemon
	for mount in $(awk -v top="$top/" 'index($2, top) == 1 { print $2 }' /proc/mounts | sort -r); do
		umount "$mount" 2>/dev/null || umount -l "$mount" || true
	done
	rm -rf --one-file-system "$top"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# agent NAME [LINE...]: defines an agent whose view has the lines. Those of -view follow them. $keys are lines of the
# definition itself.
agent() {
	local name=$1
	shift
	mkdir -p "$base/agents.d" "$base/agents/$name"
	chmod 755 "$base/agents/$name"
	{
		printf -- '---\nname: %s\n%s\n' "$name" "${keys:-}"
		[ $# -eq 0 ] && [ ${#lines[@]} -eq 0 ] || printf 'view:\n'
		printf '  %s\n' "$@" "${lines[@]}" | grep -v '^ *$' || true
		printf -- '---\n'
	} >"$base/agents.d/$name.md"
}

# in_view NAME: the directory of the agent's view. With -native a directory without a view.
in_view() {
	if [ -n "$native" ]; then
		mkdir -p "$top/native/$1"
		echo "$top/native/$1"
	else
		echo "$base/run/views/$1"
	fi
}
mounted() { [ "$("$program" --base "$base" ps 2>/dev/null | grep -c ' mounted ')" -eq "$1" ]; }
pids_of_views() { "$program" --base "$base" ps | awk '$2 == "mounted" { print $1, $3 }' | sort; }

# start_views builds the program, starts the daemon and waits until all views are mounted.
start_views() {
	local count
	[ -z "$native" ] || return 0
	make --no-print-directory build >"$top/log" 2>&1 || { cat "$top/log" >&2; fail "make build: failed: see above"; }
	count=$(find "$base/agents.d" -name '*.md' | wc -l)
	"$program" daemon --base "$base" 2>"$top/log" & daemon=$!
	for _ in {1..600}; do
		mounted "$count" && break
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.1
	done
	mounted "$count" || { cat "$top/log" >&2; fail "$base: the daemon mounted fewer than $count views: see its log above"; }
	pids_of_views >"$top/pids"
}

# same_views fails if a view's process is another one than at the start.
same_views() { [ -n "$native" ] || [ "$(pids_of_views)" = "$(cat "$top/pids")" ]; }

# timed SECONDS FILE COMMAND...: runs the command in a process group of its own, with its output in the file. The status
# is the command's, or 124 after the time.
timed() {
	local limit=$1 to=$2 status=0
	shift 2
	setsid timeout -k 10 "$limit" "$@" </dev/null >"$to" 2>&1 & load=$!
	wait "$load" || status=$?
	end_load
	return $status
}

# Results are lines of $top/results: "ok NAME", "skip NAME" or "fail NAME: DETAIL". A name has no colon.
passed() { echo "ok $1" >>"$top/results"; }
failed() { echo "fail $1: ${2:-}" >>"$top/results"; }
skipped() { echo "skip $1" >>"$top/results"; }

# report LIST: compares the results with the list, whose lines are "NAME: REASON", prints the differences and the counts,
# and is the script's status. A name can end in numbers, as in "mknod/11.t 2-6,8". A listed test that was skipped is no
# difference.
report() {
	touch "$top/results"
	awk -v list="$1" -v native="$native" -v only="$only" '
		FILENAME == list {
			if ($0 ~ /^(#|$)/) next
			name = $0; sub(/:.*/, "", name); reason = $0; sub(/^[^:]*: */, "", reason)
			count = 1
			names[1] = name
			if (name ~ / [0-9,-]+$/) {
				numbers = name; sub(/.* /, "", numbers); sub(/ [^ ]*$/, " ", name)
				count = 0
				parts = split(numbers, part, ",")
				for (i = 1; i <= parts; i++) {
					if (split(part[i], end, "-") == 1) end[2] = end[1]
					for (n = end[1] + 0; n <= end[2] + 0; n++) names[++count] = name n
				}
			}
			for (i = 1; i <= count; i++) {
				if (reason == "" || names[i] in expected) { print list ": " names[i] ": " (reason == "" ? "no reason" : "listed twice") > "/dev/stderr"; bad++ }
				expected[names[i]] = reason
			}
			next
		}
		{ kind = $1; rest = substr($0, length(kind) + 2); name = rest; sub(/:.*/, "", name); seen[name] = 1 }
		kind == "skip" { skips++; next }
		kind == "ok" && name in expected && !native { print "passes, but is listed: " name ": " expected[name]; bad++; next }
		kind == "ok" { oks++; next }
		name in expected && !native { fails++; next }
		{ print "fails: " rest; bad++ }
		END {
			if (only == "" && !native) for (name in expected) if (!(name in seen)) { print "is listed, but did not run: " name; bad++ }
			printf "%d passed, %d expected failures, %d unexpected, %d skipped\n", oks, fails, bad, skips
			exit bad > 0
		}' "$1" "$top/results" || status=1
	echo "$((SECONDS - began)) s, Linux $(uname -r), $(stat -f -c %T "$top") below${native:+, without a view}"
	return ${status:-0}
}

# four_views starts views of four kinds: what they do with data, with the kernel's caches and with the caller's user differs.
four_views() {
	agent passthrough
	agent mediated "data: mediated"
	agent uncached "cache: none"
	keys="identity: caller" agent caller "allow_other: true" "xattrs: true"
	start_views
}
