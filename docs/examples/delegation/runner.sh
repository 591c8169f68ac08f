#!/bin/sh
# A runner that needs no model. It gets the member's prompt and the task on standard
# input, and answers on standard output. The member's tools are those of `scopefs call`
# and `scopefs mcp`: the variable SCOPEFS_MCP says where, and there is nothing else.
text=$(cat)
task=$(printf '%s\n' "$text" | sed -n '/^<task from/,/^<\/task>/p' | sed '1d;$d')
case $task in
"write about "*)
	scopefs call write_file path=draft.txt content="All there is to say about ${task#write about }." >/dev/null
	verdict=$(scopefs call delegate member=checker task="check: $(scopefs call read_file path=draft.txt)") || exit 1
	echo "The draft is in draft.txt; the checker says: $verdict"
	;;
"check: "*)
	scopefs call write_file path=checked.txt content="$task" >/dev/null
	echo "it is short enough."
	;;
*)
	echo "no idea how to do that: $task" >&2
	exit 1
	;;
esac
