# Sourced by demo.sh: tries the known escapes from inside the sandbox. A row passes if the attempt failed with the expected
# error, revealed nothing from outside, and is in the log if it must be.

# denials prints the agent's denials in the log, one JSON line each.
denials() { "$bin" audit --denied --json --agent "$agent"; }
field() { sed -n "s/.*\"$1\": *\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p"; }

tried=0
row() { printf '  %-52s  %-27s  %s\n' "$1" "$2" "$3"; }

# try WHAT SCRIPT ERROR PATH|-REASON: runs one attempt. PATH must be in the log; REASON is why nothing is recorded.
try() {
	local what=$1 script=$2 error=$3 want=$4 before said code=0 new recorded
	tried=$((tried + 1))
	before=$(denials | wc -l)
	said=$(inside "$script" 2>&1) || code=$?
	new=$(denials | tail -n +$((before + 1)) | tail -n 1)
	[ $code -ne 0 ] || out "$what" "it worked: $said"
	case $said in *"$canary"*) out "$what" "it shows what is outside: $said" ;; esac
	case $said in *"$error"*) ;; *) out "$what" "answered '$said', not '$error'" ;; esac
	case $want in
	-*)
		[ -z "$new" ] || out "$what" "recorded, and said to be not: $new"
		recorded="no: ${want#-}"
		;;
	*)
		[ "$(field path <<<"$new")" = "$want" ] || out "$what" "the log does not name $want: $new"
		recorded="$(field verdict <<<"$new") $(field op <<<"$new") $(field path <<<"$new") ($(field rule <<<"$new"))"
		;;
	esac
	row "$what" "$error" "$recorded"
}
out() {
	printf '\n  !!! GOT OUT OR UNTOLD: %s\n  !!! %s\n\n' "$1" "$2" >&2
	fail "a way out is open, or not answered as it should be"
}

before=$(cat "$demo/outside/secret" "$base/agents/writer-02/notes.txt" "$base/agents/$agent"/{.env,reference/paper.txt} | sha256sum)
denied="Permission denied" gone="No such file or directory" forbidden="Operation not permitted"
secret=$demo/outside/secret

echo "$agent tries to get out:"
row "tried" "answered" "recorded"
row "$(printf '─%.0s' {1..52})" "$(printf '─%.0s' {1..27})" "$(printf '─%.0s' {1..60})"
try "an absolute link to a file of the host" "ln -s '$secret' absolute" "$denied" absolute
try "a relative link" "ln -s ../../../outside/secret relative" "$denied" relative
try "a chain of links, the last of which leads out" "ln -s two one; ln -s ../../../outside/secret two" "$denied" two
try "a link moved up until it leads out" \
	"mkdir -p a/b/c; ln -s ../../../outside/secret a/b/c/link; mv a/b/c/link moved; cat moved" "$denied" moved
try "a link to the other agent's notes" "ln -s ../writer-02/notes.txt other" "$denied" other
try "a link that the host has planted" "cat planted" "$denied" planted
try "a directory link that the host has planted" "cat planted-dir/notes.txt" "$denied" planted-dir
try "the hidden .env, by its name" "cat .env" "$gone" .env
try "another .env, made by the agent" "echo x >project/.env" "$denied" project/.env
try "a write to a read-only path" "echo x >>reference/paper.txt" "$denied" reference/paper.txt
try "a hard link of a read-only file" "ln reference/paper.txt mine.txt" "$denied" reference/paper.txt
try "the read-only directory under another name" "mv reference mine" "$denied" reference
try "a device node for the host's disk" "mknod disk b 8 0" "$forbidden" "-the kernel asks for a capability that nobody has here"
try ".. of the view" "cat ../writer-02/notes.txt" "$gone" "-above /workspace is the sandbox, which has no such file"
try "the root of process 1" "cat '/proc/1/root$secret'" "$denied" "-process 1 lets nobody in; its root is the sandbox's own anyway"
try "a user namespace, to be root in" "unshare --user --map-root-user true" "$forbidden" "-the sandbox's seccomp filter answers"
[ -e /bin/bash ] && try "the network" "bash -c 'echo >/dev/tcp/192.0.2.1/80'" "Network is unreachable" "-the sandbox has no network to ask"

after=$(cat "$demo/outside/secret" "$base/agents/writer-02/notes.txt" "$base/agents/$agent"/{.env,reference/paper.txt} | sha256sum)
[ "$before" = "$after" ] || out "all of it" "a file outside has changed"
printf '  %d ways tried, none led out; the files outside are as they were.\n' "$tried"
