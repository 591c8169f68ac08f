#!/usr/bin/env bash
# Measures what grows: a million files, a directory of many, many views, many threads, many rules. Prints Markdown.
# Usage, as root:
#
#	scale.sh [-dirs N] [-files N] [-entries N] [-views N] [-threads LIST] [-grids LIST] [-agents LIST] [-rules LIST]
#	         [-counts LIST] [-looked N] [-rounds N] [-settle SECONDS] [-idle SECONDS]
#	         [-idlers N] [-minute SECONDS]
#	         [-only agents|million|entries|views|threads|single|idle|mount] [-smoke]
#
# Idle counts the processor time of all processes for a minute in which nobody uses -idlers agents, mount that of mounting as
# many agents as -counts says, each for a daemon of root and of an ordinary user. Agents starts as many agents as -counts says. -dirs of -files each are walked; -looked files are for the threads; -grids are numbers of files for the single operations,
# in directories of at most 1000; -settle is how long a view has to give memory back, -idle how long idle views are watched.
# -smoke is all of it in sizes that measure nothing; flags after it change them. SCOPEFS_BENCH_DIR names the directory to
# work in, default /dev/shm. The kernel's caches are dropped now and then.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=5 only= counts="200 500 1000" dirs=1000 files=1000 entries=200000 views=200 idle=10 settle=150 looked=20000 idlers=100 minute=60
threads="1 2 8 64" grids="10 100000" agents="1 50" rules="0 1000"
while [ $# -gt 0 ]; do
	case $1 in
	-dirs | -files | -entries | -views | -threads | -grids | -agents | -counts | -rules | -rounds | -settle | -idle | -looked | -idlers | -minute | -only)
		[ $# -ge 2 ] || { echo "$1 wants a value" >&2; exit 2; }
		declare "${1#-}=$2"
		shift
		;;
	-smoke)
		counts="3 6"
		idlers=3 minute=1
		rounds=1 dirs=10 files=20 entries=300 views=3 idle=1 settle=2 looked=128
		threads="1 8" grids="10 2000" agents="1 3" rules="0 20"
		;;
	*) sed -n '2,/^set/s/^#\( \|$\)\?//p' integration/bench/scale.sh >&2; exit 2 ;;
	esac
	shift
done
. integration/bench/sides.sh
native=$top/base/agents/bench
view=$top/base/run/views/bench

# memory PID: resident, anonymous, proportional and private KiB. Anonymous is Go's heap and stacks and little else.
memory() {
	awk '{ v[$1] = $2 } END { print v["Rss:"], v["Anonymous:"], v["Pss:"], v["Private_Clean:"] + v["Private_Dirty:"] }' \
		"/proc/$1/smaps_rollup"
}
mib() { awk -v k="$1" 'BEGIN { printf "%.1f MiB", k / 1024 }'; }

# inodes prints how many inodes of FUSE the kernel has in memory, of all mounts.
inodes() { awk '$1 == "fuse_inode" { print $2 }' /proc/slabinfo; }

# restart VIEWS [COMMAND...]: a daemon whose views have served nothing yet; $pid is that of the view bench.
restart() {
	stop_daemon
	start_daemon "$@"
	stat "$view" >/dev/null
	pid=$("$top/scopefs" ps --base "$top/base" | awk '$1 == "bench" { print $3 }')
}

# growth COUNT TEXT FROM TO: a line of the view's memory, and what each of so many cost.
growth() {
	local from=($3) to=($4)
	echo "| $2 | $(mib "${to[0]}") | $(mib "${to[1]}") | $(((to[0] - from[0]) * 1024 / $1)) B |"
}

# walk DIR: asks for every file. What find could not do is in $top/errors: a figure here, and the caller's to judge.
walk() {
	local found
	found=$({ find "$1" -type f -printf '%s\n' 2>"$top/errors" || true; } | wc -l)
	[ -s "$top/errors" ] || equals $((dirs * files)) "$found"
}

part_million() {
	local count=$((dirs * files)) before after known took errors
	"$top/bench" files "$dirs" "$files" 0 "$native"
	restart 1 prlimit --nofile=1024:1024
	printf '\n## %d files in %d directories\n\n' "$count" "$dirs"
	awk '/open files/ { print "Descriptors that the view may have: " $5 "." }' "/proc/$pid/limits"
	forget 3
	attempt walk "$native"
	[ ! -s "$top/errors" ] || { head "$top/errors" >&2; fail "find in the directory itself"; }
	took=$micros
	forget 3
	known=$(inodes) before=$(memory "$pid")
	attempt walk "$view"
	after=$(memory "$pid") known=$(($(inodes) - known)) errors=$(wc -l <"$top/errors")
	printf '\n| | native | scopefs | ratio | errors |\n|---|---|---|---|---|\n'
	echo "| find -type f -printf %s | $(show "$took") | $(show "$micros") | $(ratio "$micros" "$took") | $errors |"
	printf '\n| the view | resident | anonymous | resident more, a file |\n|---|---|---|---|\n'
	growth "$count" "before" "$before" "$before"
	growth "$count" "after; the kernel has $known inodes more, the view $(find "/proc/$pid/fd" -type l | wc -l) descriptors" "$before" "$after"
	attempt forget 2
	took=$micros
	sleep "$((settle < 5 ? settle : 5))"
	growth "$count" "soon after the kernel forgot them, which took $(show "$took"); it has $(inodes)" "$before" "$(memory "$pid")"
	sleep "$settle"
	growth "$count" "$settle s later" "$before" "$(memory "$pid")"
	[ "$errors" -eq 0 ] || { head "$top/errors" >&2; fail "find in the view: $errors errors"; }
}

# list OPTION DIR COUNT: lists it, and counts the lines.
list() {
	local found
	found=$(ls "$1" "$2" | wc -l)
	equals "$3" "$found"
}

part_entries() {
	local option lines r n s before times=$top/times
	"$top/bench" files 1 "$entries" 0 "$native"
	restart 1
	before=$(memory "$pid")
	printf '\n## A directory of %d entries\n\n' "$entries"
	printf '| | native | scopefs | ratio | view: resident | anonymous | resident more, an entry |\n|---|---|---|---|---|---|---|\n'
	growth "$entries" "before | | |" "$before" "$before"
	for option in -f -l; do
		lines=$((entries + 1)) # ls -l says a total, ls -f has . and ..
		[ $option != -f ] || lines=$((entries + 2))
		rm -f "$times".*
		for ((r = 0; r < rounds; r++)); do
			attempt list "$option" "$native/d0000" $lines; echo "$micros" >>"$times.native"
			attempt list "$option" "$view/d0000" $lines; echo "$micros" >>"$times.scopefs"
		done
		n=$(median <"$times.native") s=$(median <"$times.scopefs")
		growth "$entries" "ls $option | $(show "$n") | $(show "$s") | $(ratio "$s" "$n")" "$before" "$(memory "$pid")"
	done
}

# column N: smallest, median and greatest number of a column, KiB shown as MiB.
column() { awk -v c="$1" '{ print $c }' | sort -n | awk '{ v[NR] = $1 / 1024 } END { printf "%.1f | %.1f | %.1f", v[1], v[int(NR / 2) + 1], v[NR] }'; }

# spent PID...: nanoseconds of CPU that the threads of these processes have had; proc_pid_schedstat in the kernel's sched-stats.rst.
spent() {
	local p
	for p in "$@"; do cat "/proc/$p"/task/*/schedstat; done | awk '{ t += $1 } END { printf "%.0f", t }'
}

part_views() {
	local i began took from said=$top/memory all
	for ((i = 1; i < views; i++)); do agent "bench-$i"; done
	stop_daemon
	began=${EPOCHREALTIME/./}
	restart "$views"
	took=$((${EPOCHREALTIME/./} - began))
	read -ra all <<<"$("$top/scopefs" ps --base "$top/base" | awk 'NR > 1 { printf "%s ", $3 }')"
	[ ${#all[@]} -eq "$views" ] || fail "scopefs ps tells of ${#all[@]} views, want $views"
	sleep "$idle" # until what starting took is over
	from=$(spent "${all[@]}")
	sleep "$idle"
	from=$(($(spent "${all[@]}") - from))
	for i in "${all[@]}"; do memory "$i"; done >"$said"
	printf '\n## %d views, idle\n\n' "$views"
	echo "Mounted in $(show "$took"). CPU time of all view processes in $idle s: $(show $((from / 1000)))."
	printf '\n| MiB a view process | least | median | most |\n|---|---|---|---|\n'
	echo "| resident (RSS) | $(column 1 <"$said") |"
	echo "| anonymous | $(column 2 <"$said") |"
	echo "| its share (PSS) | $(column 3 <"$said") |"
	echo "| private | $(column 4 <"$said") |"
	echo "| the daemon: RSS | | $(mib "$(memory "$daemon" | cut -d' ' -f1)") | |"
}

# answers succeeds once the control socket does.
answers() { "$top/scopefs" ps --base "$top/base" >"$top/ps" 2>/dev/null; }

# median_of COMMAND...: the median of its times, in microseconds; a command that prepares each is in $before.
median_of() {
	local r
	for ((r = 0; r < rounds * 2; r++)); do
		$before "$r"
		attempt "$@"
		echo "$micros" >&4
	done 4>"$top/times"
	median <"$top/times"
}

describe() { sed -i "s/^description: .*/description: measured $1 $RANDOM/" "$top/base/agents.d/bench.md"; }

part_agents() {
	local n i began answered mounted spent run reload all pss before
	printf '\n## Starting many agents\n\n'
	echo "Load of the machine before: $(cut -d' ' -f1-3 /proc/loadavg)."
	printf '\n| agents | socket answers | all mounted | processor time of that | run true | reload of one | stop | daemon: resident | a view: its share (PSS) | load |\n'
	printf '|---|---|---|---|---|---|---|---|---|---|\n'
	for n in $counts; do
		fresh
		for ((i = 1; i < n; i++)); do agent "bench-$i"; done
		sleep 4 # until definitions are not new, which costs reading them
		began=${EPOCHREALTIME/./}
		"$top/scopefs" daemon --base "$top/base" 2>"$top/log" & daemon=$!
		until answers; do kill -0 "$daemon" || fail "the daemon has ended: $(tail -n 3 "$top/log")"; done
		answered=$((${EPOCHREALTIME/./} - began))
		await "$n views" "$daemon" serves "$n"
		mounted=$((${EPOCHREALTIME/./} - began))
		answers
		spent=$(spent "$daemon" $(awk '$1 != "AGENT" && $3 > 1 { print $3 }' "$top/ps"))
		sleep 4
		before=: run=$(median_of "$top/scopefs" run --base "$top/base" bench -- true)
		before=describe reload=$(median_of "$top/scopefs" reload --base "$top/base")
		answers
		pss=$(awk '$1 != "AGENT" && $3 > 1 { print $3 }' "$top/ps" | while read -r i; do memory "$i"; done | awk '{ s += $3 } END { print s / NR }')
		all="$(mib "$(memory "$daemon" | cut -d' ' -f1)") | $(mib "$pss") | $(cut -d' ' -f1 /proc/loadavg)"
		began=${EPOCHREALTIME/./}
		stop_daemon
		echo "| $n | $(show "$answered") | $(show "$mounted") | $(show $((spent / 1000))) | $(show "$run") | $(show "$reload") | $(show $((${EPOCHREALTIME/./} - began))) | $all |"
	done
}

# Both end the shell that calls them. An ordinary user, whose daemon has its mounts in namespaces of its own, counts requests that
# wait where fusectl is mounted, as systemd does.
user=12321
as_root() { SCOPEFS_BASE=$top/base exec "$@"; }
as_user() {
	exec unshare -m sh -c 'mount -t fusectl fusectl /sys/fs/fuse/connections; exec "$@"' sh \
		setpriv --reuid $user --regid $user --clear-groups \
		env -u SCOPEFS_BASE HOME="$top/user" XDG_DATA_HOME="$top/user" XDG_STATE_HOME="$top/user/state" XDG_RUNTIME_DIR="$top/user/session" "$@"
}

# start_as WHO COUNT: starts the daemon of root or of a user with so many agents, and waits until a stat through each mount
# has been answered by the agent's view. $ours is the daemon: that of a user is a child of $daemon.
start_as() {
	local i views=$top/base/run/views inside=() flags=()
	for ((i = 1; i < $2; i++)); do agent "bench-$i"; done
	for i in "$top/base/agents"/*/; do echo mine >"$i/file"; done
	if [ "$1" = user ]; then
		rm -rf "$top/user"
		mkdir -p "$top/user/session" "$top/user/state"
		mv "$top/base" "$top/user/scopefs"
		chmod 755 "$top"
		chown -R $user:$user "$top/user"
		chmod 700 "$top/user/session"
		views=$top/user/session/scopefs/views flags=(--user)
	fi
	"as_$1" "$top/scopefs" daemon "${flags[@]}" 2>"$top/log" & daemon=$!
	await "$2 views" "$daemon" mounted_as "$1" "$2"
	ours=$daemon
	if [ "$1" = user ]; then
		ours=$(pgrep -P "$daemon")
		inside=(nsenter -t "$ours" -U -m)
	fi
	equals "$2" "$("${inside[@]}" sh -c "stat -c %s $views/*/file" | grep -cx 5)"
}
mounted_as() {
	sleep 0.5 # ps takes the daemon some milliseconds
	("as_$1" "$top/scopefs" ps) >"$top/ps" 2>/dev/null && [ "$(awk '$3 > 1' "$top/ps" | grep -c mounted)" -eq "$2" ]
}

# used PID...: milliseconds of processor time that the threads of these processes have had. In proc_pid_stat(5) a tick is 10 ms,
# and a view that has started has used less.
used() { echo $(($(spent "$@") / 1000000)); }
children() { pgrep -P "$ours" "$@"; }

part_idle() {
	local who all daemons views
	printf '\n## %d agents that nobody uses, for %d s\n\n' "$idlers" "$minute"
	printf '| daemon of | processor time | of a processor | of that the daemon | the views | the log and the holder |\n|---|---|---|---|---|---|\n'
	for who in root user; do
		fresh
		start_as $who "$idlers"
		sleep $((minute / 4)) # until what starting took is over
		all=$(used "$ours" $(children)) daemons=$(used "$ours") views=$(used $(children -f ^scopefs-view))
		sleep "$minute"
		all=$(($(used "$ours" $(children)) - all)) daemons=$(($(used "$ours") - daemons)) views=$(($(used $(children -f ^scopefs-view)) - views))
		echo "| $who | $all ms | $(awk -v t="$all" -v m="$minute" 'BEGIN { printf "%.2f %%", t / m / 10 }') | $daemons ms | $views ms | $((all - daemons - views)) ms |"
	done
}

part_mount() {
	local who n began took all own
	printf '\n## Mounting many agents\n\n'
	echo "Load of the machine before: $(cut -d' ' -f1-3 /proc/loadavg)."
	printf '\n| daemon of | agents | all answer | processor time | a view | of that the daemon |\n|---|---|---|---|---|---|\n'
	for who in root user; do
		for n in $counts; do
			fresh
			began=${EPOCHREALTIME/./}
			start_as $who "$n"
			took=$((${EPOCHREALTIME/./} - began))
			sleep 3 # until views have given back the memory of their start
			all=$(used "$ours" $(children)) own=$(used "$ours")
			echo "| $who | $n | $(show "$took") | $all ms | $(awk -v t="$all" -v n="$n" 'BEGIN { printf "%.1f ms", t / n }') | $(awk -v t="$own" -v n="$n" 'BEGIN { printf "%.1f ms", t / n }') |"
		done
	done
}

part_threads() {
	local t r n s times=$top/times
	local grid=$(((looked + 99) / 100))
	"$top/bench" files "$grid" 100 4096 "$native"
	restart 1
	printf '\n## Threads in one view: stat, open, read and close of %d files that the kernel has forgotten\n\n' $((grid * 100))
	printf '| threads | native files/s | scopefs files/s | of native |\n|---|---|---|---|\n'
	for t in $threads; do
		rm -f "$times".*
		for ((r = 0; r < rounds; r++)); do
			forget 2
			"$top/bench" threads "$t" "$grid" 100 "$native" >>"$times.native"
			forget 2
			"$top/bench" threads "$t" "$grid" 100 "$view" >>"$times.scopefs"
		done
		n=$(median <"$times.native") s=$(median <"$times.scopefs")
		echo "| $t | $n | $s | $(ratio "$s" "$n") |"
	done
}

part_single() {
	local grid per a r i n s
	printf '\n## One open of a file that the kernel has forgotten, one stat of a file that it knows\n\n'
	printf '| files | agents | rules | open, native µs | scopefs µs | stat, native µs | scopefs µs |\n|---|---|---|---|---|---|---|\n'
	for grid in $grids; do
		per=$((grid < 1000 ? grid : 1000))
		fresh
		"$top/bench" files $((grid / per)) "$per" 4096 "$native"
		for a in $agents; do
			for r in $rules; do
				stop_daemon
				rm -rf "$top/base/agents.d"
				agent bench "$r"
				for ((i = 1; i < a; i++)); do agent "bench-$i" "$r"; done
				restart "$a"
				"$top/bench" single "$((rounds * 4))" $((grid / per)) "$per" "$native" "$view" >"$top/times"
				{ read -ra n; read -ra s; } <"$top/times"
				echo "| $grid | $a | $r | ${n[0]} | ${s[0]} | ${n[1]} | ${s[1]} |"
			done
		done
	done
}

# fresh ends the views and leaves one agent, without files.
fresh() {
	stop_daemon
	rm -rf "$top/base" "$top/user"
	agent bench
}

build
for part in agents million entries views threads single idle mount; do
	[[ $part == *"$only"* ]] || continue
	fresh
	"part_$part"
done
