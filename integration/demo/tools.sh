# Sourced by demo.sh: calls the agents' tools through Set.Call, as an MCP client does. Each line shows the call and its
# answer. A call that is wrongly allowed or refused ends the demo.

# call AGENT TOOL [NAME=TEXT...]: calls a tool.
call() { "$bin" call --agent "$@" 2>&1 9>&-; }

# says WHAT WANT COMMAND...: the answer must contain WANT.
says() {
	local what=$1 want=$2 said
	shift 2
	said=$("$@") || true
	case $said in *"$want"*) ;; *) fail "$what: answered '$said', not '$want'" ;; esac
	row "$what" "$want" ""
}

echo "writer-02 has tools: $("$bin" call --agent writer-02 --list 9>&- | awk '{ printf "%s ", $1 }')"
row "asked" "answered" ""
says "read_file notes.txt" "of writer-02" call writer-02 read_file path=notes.txt
says "read_file of the other agent, by .." "no such file" call writer-02 read_file path=../$agent/.env
says "read_file of what is nowhere" "no such file" call writer-02 read_file path=../nobody/nothing
says "bash, which is not in its list" "there is no tool" call writer-02 bash command=true
says "edit_file, a private key in base64" "does not allow" call writer-02 edit_file path=notes.txt \
	"edits:=[{\"old_text\":\"of\",\"new_text\":\"$(printf 'BEGIN RSA PRIVATE KEY' | base64 -w0)\"}]"
says "$agent: bash, touch .env" "Permission denied" call "$agent" bash command="touch .env"
denial=$("$bin" audit --denied --json --agent "$agent" | tail -n 1)
[ -n "$(field call <<<"$denial")" ] || fail "the denial does not carry its call's id: $denial"
row "the denial of that carries the call's id" "$(field call <<<"$denial")" ""
if [ -x "$bin-stores" ]; then
	says "kv_set of a key" "version" call writer-02 kv_set key=plan value="of writer-02"
	says "$agent: kv_set of the same key" "version" call "$agent" kv_set key=plan value="of $agent"
	says "kv_get of it: the agents do not meet" "of writer-02" call writer-02 kv_get key=plan
	says "kv_get of the other agent's name" "not_found" call writer-02 kv_get key="$agent:plan"
	for who in writer-02 "$agent"; do
		says "$who: create_table notes" "notes" call "$who" create_table name=notes 'columns:=[{"name":"text","type":"TEXT"}]'
		says "$who: sql_execute, insert" "" call "$who" sql_execute sql="INSERT INTO notes VALUES ('of $who')"
	done
	says "sql_query: a table for each agent" "of writer-02" call writer-02 sql_query sql="SELECT * FROM notes"
	says "sql_execute, attach the other agent's file" "denied" call writer-02 sql_execute sql="ATTACH 'agent_$agent.db' AS n"
	for who in writer-02 "$agent"; do
		says "$who: publish on jobs.done" "sequence" call "$who" publish subject=jobs.done text="by $who"
	done
	says "subscribe to it: one message, its own" "by writer-02" call writer-02 subscribe subject=jobs.done limit:=2
	says "subscribe to every subject of all agents" "is no subject" call writer-02 subscribe subject='>'
else
	row "kv_set, sql_query, publish: make build builds the drivers of stores" "not shown" ""
fi
if root; then
	says "write_file, which must be approved" "approval_required" call writer-02 write_file path=draft.md content=Hello
	id=$("$bin" approvals --json | field id)
	says "the operator approves $id" "approved until" "$bin" approvals approve "$id"
	says "write_file again" "created draft.md" call writer-02 write_file path=draft.md content=Hello
	says "and again: what was approved is used up" "approval_required" call writer-02 write_file path=draft.md content=Hello
	sed -i 's/scope_info\]/scope_info, bash]/' "$base/agents.d/writer-02.md"
	says "bash is put on its list; reload" "" "$bin" reload
	says "bash, true" "" call writer-02 bash command=true
else
	says "write_file: without a daemon nobody can approve" "nobody is here" call writer-02 write_file path=draft.md content=Hello
fi
if command -v python3 >/dev/null && has 'curl --version'; then
	python3 -u -m http.server --bind 127.0.0.1 --directory "$base/skills" 0 >"$demo/server.log" 2>&1 9>&- &
	server=$!
	for _ in {1..100}; do
		port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$demo/server.log")
		[ -z "$port" ] || break
		sleep 0.1
	done
	[ -n "$port" ] || fail "the local server did not start"
	sed -i "s/^network: none/network: {allow: [{host: docs.internal, address: '127.0.0.1:$port', methods: [GET]}]}/" "$base/agents.d/$agent.md"
	! root || "$bin" reload >/dev/null
	says "$agent: curl of the one host that its network allows" "Short sentences" call "$agent" bash command="curl -sS http://docs.internal/house-style/SKILL.md"
	says "$agent: POST to it" "ask your operator" call "$agent" bash command="curl -sS -d x http://docs.internal/"
	says "$agent: curl of another host" "scopefs allow example.org" call "$agent" bash command="curl -sS http://example.org/"
	kill "$server"
	server=
fi
echo
echo "scopefs prompt writer-02"
"$bin" prompt writer-02 | sed 's/^/  /'
