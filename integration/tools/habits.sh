#!/usr/bin/env bash
# Prints which habits of a developer's day work in sandboxes: the last table of docs/comparison.md. After "no" comes
# the last line of what was printed. Servers and clients have a network namespace with loopback alone. Usage, as root:
#
#   integration/tools/habits.sh SCOPEFS CLIENTS [HABIT...]
#
# CLIENTS is what .ci/clients makes: node, and node_modules with @anthropic-ai/sandbox-runtime and @openai/codex.
# Neither is in /tmp. With KEEP=DIRECTORY the log is copied there.
set -eu
scopefs=$(realpath "$1") clients=$(realpath "$2") script=$(realpath "$0")
shift 2
if [ -z "${HABITS:-}" ]; then
	exec env HABITS=1 unshare -mnp --fork --kill-child --mount-proc "$script" "$scopefs" "$clients" "$@"
fi
if [ "$HABITS" = 1 ]; then # the ordinary user's devices, and a directory of their own
	ip link set lo up
	for dir in /mnt /tmp; do mount -t tmpfs -o mode=1777 none $dir; done
	mkdir -m 1777 /tmp/claude # sandbox-runtime's TMPDIR
	here=/mnt/h
	mkdir -p $here/dev $here/bin $here/home && cd $here
	mknod -m 666 dev/fuse c 10 229 && mount --bind dev/fuse /dev/fuse
	mknod -m 666 dev/kvm c 10 232 && { [ ! -e /dev/kvm ] || mount --bind dev/kvm /dev/kvm; }
	ln -s "$scopefs" bin/scopefs
	ln -s "$clients/node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js" bin/srt
	ln -s "$clients/node_modules/@openai/codex/bin/codex.js" bin/codex
	chown -R 1234:1234 . && chmod 755 .
	{ cat /etc/passwd; echo "dev:x:1234:1234::$here/home:/bin/bash"; } >passwd && mount --bind passwd /etc/passwd
	exec setpriv --reuid 1234 --regid 1234 --clear-groups \
		env -i HABITS=2 HOME=$here/home USER=dev TERM=dumb KEEP="${KEEP:-}" \
		PATH="$here/bin:$clients/node/bin:/usr/bin:/bin:/usr/sbin" \
		XDG_RUNTIME_DIR=$here/run bash "$script" "$scopefs" "$clients" "$@"
fi

here=/mnt/h only=$*
cd $here
export SSH_AUTH_SOCK=$here/agent
mkdir -p run && chmod 700 run
exec 3>&1 >log 2>&1 # 3 has the table

# until_ok COMMAND... repeats a command for half a minute until it succeeds.
until_ok() {
	for _ in $(seq 300); do
		! "$@" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	return 1
}

# by_scopefs and the others set the words that start a command in a sandbox.
by_scopefs() { sandbox=(scopefs run --dir . "$@" --); }
# by_srt DOMAINS WRITE NETWORK: each is JSON that the settings of a project have besides.
by_srt() {
	cat >$here/srt.json <<-END
		{"network": {"allowedDomains": [${1-}], "deniedDomains": []${3-}},
		 "filesystem": {"denyRead": [], "allowWrite": [".", "/tmp/claude"${2-}], "denyWrite": []}}
	END
	sandbox=(srt --settings $here/srt.json -c)
}
by_codex() {
	local word
	sandbox=(codex sandbox -c 'sandbox_mode="workspace-write"')
	for word in "$@"; do sandbox+=(-c "sandbox_workspace_write.$word"); done
	sandbox+=(--)
}

# inside COMMAND... runs a command in the sandbox. sandbox-runtime takes a line of shell.
inside() {
	[ $program != srt ] || set -- "${*@Q}"
	[ $BASHPID = $$ ] || exec "${sandbox[@]}" "$@" # a job is what try ends
	"${sandbox[@]}" "$@"
}

# try NAME CELL takes up a habit in a new project, and prints the cell if that works.
try() {
	echo "== $1 $2: ${sandbox[*]}"
	mkdir -p "$dir/lib" "$dir/app" && cd "$dir/app"
	git init -q && git commit -q --allow-empty -m first && echo 1 >../lib/version
	local status=0
	"habit_$1" >$here/out 2>&1 || status=$?
	cat $here/out
	for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done
	wait
	cd $here
	[ $status -eq 0 ] && printf ' %s |' "$2" >&3
}

# row NAME TITLE PROGRAM CELL [ARGUMENT...] [-- PROGRAM CELL [ARGUMENT...]]... prints for each program the cell of the
# first way that works. DIR in an argument is the directory with the project.
row() {
	local name=$1 title=$2 program='' found='' said='' way
	shift 2
	case " ${only:-$name} " in *" $name "*) ;; *) return 0 ;; esac
	printf '| %s |' "$title" >&3
	while [ $# -gt 0 ]; do
		way=()
		while [ $# -gt 0 ] && [ "$1" != -- ]; do way+=("$1") && shift; done
		[ $# -eq 0 ] || shift
		if [ "${way[0]}" != "$program" ]; then
			[ -z "$program$found" ] || [ -n "$found" ] || printf ' no: %s |' "$said" >&3
			program=${way[0]} found=''
		fi
		[ -z "$found" ] || continue
		dir=$here/$((tries += 1))
		"by_$program" "${way[@]:2}"
		sandbox=(timeout -k 5 90 "${sandbox[@]//DIR/$dir}")
		sed -i "s|DIR|$dir|" $here/srt.json
		if try "$name" "${way[1]}"; then found=yes; else said=$(grep . $here/out | tail -n 1 | cut -c1-160); fi
	done
	[ -n "$found" ] || printf ' no: %s |' "$said" >&3
	echo >&3
}

habit_worktree() {
	git worktree add -q ../fix && cd ../fix
	inside git commit -q --allow-empty -m 'in the worktree'
	[ "$(git log -1 --format=%s)" = 'in the worktree' ]
}

habit_second() {
	inside sh -c 'echo 2 >../lib/version'
	[ "$(cat ../lib/version)" = 2 ]
}

# A program writes outside, and goes on when the user has said yes. sandbox-runtime takes new settings while it runs.
habit_ask() {
	mkfifo $dir/settings
	exec 4<>$dir/settings
	[ $program != srt ] || sandbox=("${sandbox[@]::${#sandbox[@]}-1}" --control-fd 4 -c)
	(
		sleep 3
		sed 's/"\."/".", "..\/lib"/' $here/srt.json >&4
		until_ok sh -c 'scopefs approvals approve --dir . $(scopefs approvals --dir . | awk "NR == 2 {print \$1}")'
	) &
	inside sh -c 'echo 2 >../lib/version || { sleep 8; echo 2 >../lib/version; }'
	exec 4>&-
	[ "$(cat ../lib/version)" = 2 ]
}

habit_publish() {
	echo page >index.html
	inside python3 -u -m http.server --bind 127.0.0.1 3000 &
	until_ok grep -q Serving $here/out || return 1
	until_ok sh -c 'curl -sS -m 2 http://127.0.0.1:3000/ | grep page' || { curl -sS http://127.0.0.1:3000/; return 1; }
}

# A client as that of a database: TCP, without a proxy.
habit_database() {
	python3 -c 'import socketserver as s
class H(s.StreamRequestHandler):
    def handle(self): self.wfile.write(b"server 17\n")
s.TCPServer.allow_reuse_address = True
s.TCPServer(("127.0.0.1", 15432), H).serve_forever()' &
	until_ok bash -c 'exec 5<>/dev/tcp/127.0.0.1/15432'
	inside python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 15432), 5).recv(9))'
}

habit_watch() {
	mkdir src && echo 1 >src/a
	inside timeout 60 inotifywait -e modify src 2>&1 &
	until_ok grep -q established $here/out || return 1
	sleep 2
	echo 2 >src/a
	until_ok grep -q MODIFY $here/out
}

# The key is in the user's SSH agent alone, as one with a passphrase is.
habit_keys() {
	local at=dev@localhost:2222
	[ $program != scopefs ] || {
		scopefs run -q --dir . -- true
		sed -i "2i network: {allow: [{host: git.test, address: '127.0.0.1:2222', ports: [22]}]}" "$(definition)"
		at=dev@git.test
	}
	git init -q --bare $dir/remote.git
	inside sh -c "git commit -qS --allow-empty -m signed && git push -q ssh://$at$dir/remote.git HEAD:main"
	git -C $dir/remote.git -c gpg.ssh.allowedSignersFile=$here/signers verify-commit main
}

habit_device() {
	[ $program != scopefs ] || {
		scopefs run -q --dir . -- true
		sed -i 's/^sandbox: {/&devices: [kvm], /' "$(definition)"
	}
	inside python3 -c 'import os; os.open("/dev/kvm", os.O_RDWR)'
}

# The company's proxy reads TLS, by a CA of its own. The user's environment has both.
habit_company() {
	[ $program != scopefs ] || {
		mkdir -p ~/.config/scopefs
		echo "network: {upstream: 'http://127.0.0.1:3129', ca: $here/ca.pem}" >~/.config/scopefs/scopefs.yaml
		scopefs allow registry.test --yes --dir .
	}
	python3 -c 'import socketserver as s, ssl
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); tls.load_cert_chain("'$here'/site.pem")
class H(s.StreamRequestHandler):
    rbufsize = 0
    def handle(self):
        while self.rfile.readline().strip(): pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with tls.wrap_socket(self.request, server_side=True) as c:
            c.recv(9999)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\npackage\n")
s.ThreadingTCPServer.allow_reuse_address = True
s.ThreadingTCPServer(("127.0.0.1", 3129), H).serve_forever()' &
	until_ok bash -c 'exec 5<>/dev/tcp/127.0.0.1/3129'
	local status=0
	https_proxy=http://127.0.0.1:3129 CURL_CA_BUNDLE=$here/ca.pem inside curl -sS -m 20 https://registry.test/ || status=$?
	rm -f ~/.config/scopefs/scopefs.yaml
	return $status
}

# Where the sandbox does not start, the first line says why.
habit_container() {
	bwrap --bind / / --proc /proc --dev /dev env -u XDG_RUNTIME_DIR "${sandbox[@]}" true && return
	head -n 1 $here/out
	return 1
}

definition() { ls -t ~/.local/state/scopefs/app-*/agents.d/*.md | head -n 1; }

git config --global gpg.format ssh
git config --global user.signingKey $here/key.pub
git config --global user.name dev
git config --global user.email dev@example.org
git config --global init.defaultBranch main
for name in host key; do ssh-keygen -q -t ed25519 -N '' -C $name -f $name; done
mkdir -p ~/.ssh && chmod 700 ~/.ssh
for at in git.test '[localhost]:2222'; do echo "$at $(cut -d' ' -f1,2 host.pub)"; done >~/.ssh/known_hosts
echo "dev@example.org $(cat key.pub)" >signers
printf '%s\n' 'ListenAddress 127.0.0.1' 'Port 2222' "HostKey $here/host" \
	'PidFile none' "AuthorizedKeysFile $here/key.pub" 'StrictModes no' 'UsePAM no' 'PasswordAuthentication no' >sshd_config
/usr/sbin/sshd -D -e -f sshd_config &
sshd=$!
ssh-agent -D -a $SSH_AUTH_SOCK &
until_ok ssh-add key
rm key
disown -a
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=company
openssl req -newkey rsa:2048 -nodes -keyout site.key -out site.csr -subj /CN=registry.test
printf 'subjectAltName=DNS:registry.test' >site.ext
openssl x509 -req -in site.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile site.ext -out site.crt
cat site.crt site.key >site.pem

echo '| habit | scopefs | sandbox-runtime | Codex |' >&3
echo '|---|---|---|---|' >&3
touch srt.json
tries=0
row worktree '`git commit` in a linked worktree' scopefs nothing -- \
	srt nothing -- srt '`allowWrite`: the other `.git`' '' ', "DIR/app/.git"' -- \
	codex nothing -- codex '`writable_roots`: the other `.git`' 'writable_roots=["DIR/app/.git"]' -- \
	codex '`writable_roots`: the other `.git`, and its `worktrees/NAME`' \
	'writable_roots=["DIR/app/.git", "DIR/app/.git/worktrees/fix"]'
row second 'a second directory' scopefs '`--with ../lib`' --with ../lib -- \
	srt '`allowWrite`' '' ', "../lib"' -- \
	codex '`writable_roots`' 'writable_roots=["DIR/lib"]'
row ask 'a directory that waits for your yes' scopefs '`--with ../lib:ask`' --with ../lib:ask -- \
	srt '`--control-fd`' -- \
	codex nothing
row publish 'a development server, from the host' scopefs '`--publish 3000`' --publish 3000 -- \
	srt '`allowLocalBinding`' '' '' ', "allowLocalBinding": true' -- \
	codex nothing -- codex '`network_access`' network_access=true
row database 'a database of the host, on loopback' scopefs '`--host-port 15432`' --host-port 15432 -- \
	srt '`allowedDomains`' '"localhost:15432", "127.0.0.1:15432"' '' ', "allowLocalBinding": true' -- \
	codex '`network_access`' network_access=true
row watch 'a watcher sees your edits' scopefs nothing -- srt nothing -- codex nothing
row keys 'a commit signed and pushed with a key of your SSH agent' \
	scopefs '`--ssh-agent KEY`' --ssh-agent $here/key.pub:allow -- \
	srt '`allowedDomains`' '"localhost:2222"' -- \
	srt '`allowedDomains`, `allowAllUnixSockets`' '"localhost:2222"' '' ', "allowAllUnixSockets": true' -- \
	codex '`network_access`' network_access=true -- \
	codex '`network_access`, `writable_roots`' network_access=true 'writable_roots=["DIR/app/.git"]'
row device '`/dev/kvm`' scopefs '`devices: [kvm]`' -- \
	srt nothing -- srt '`allowWrite`' '' ', "/dev/kvm"' -- srt '`allowWrite`: all devices' '' ', "/dev"' -- \
	codex nothing -- codex '`writable_roots`' 'writable_roots=["/dev/kvm"]' -- \
	codex '`writable_roots`: all devices' 'writable_roots=["/dev"]'
row company 'the proxy and the CA of a company' scopefs '`upstream`, `ca`' -- \
	srt '`allowedDomains`' '"registry.test"' -- \
	codex nothing -- codex '`network_access`' network_access=true
row container 'a container without `/dev/fuse`' scopefs nothing -- srt nothing -- codex nothing
[ -z "${KEEP:-}" ] || cp log "$KEEP"
