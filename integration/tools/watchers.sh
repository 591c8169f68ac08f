#!/bin/sh
# Prints which watchers in a sandbox see what the host changes: the table of docs/projects.md.
#
#   integration/tools/watchers.sh SCOPEFS TOOLS [WATCHER...]
#
# TOOLS has node_modules with chokidar (3), chokidar4, typescript, nodemon and vite; gofsnotify, a program that prints the events of
# Go's fsnotify for its arguments; pyw, with Python's watchfiles. Debian has inotify-tools and python3-watchdog.
set -u
scopefs=$1 tools=$(realpath "$2")
shift 2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export XDG_RUNTIME_DIR="$here/run" HOME="$here/home"
mkdir -p "$XDG_RUNTIME_DIR" "$HOME"

# watch NAME READY COMMAND... prints one row. The output of the command grows with what it sees.
watch() {
	name=$1 ready=$2
	shift 2
	[ -z "$only" ] || case " $only " in *" $name "*) ;; *) return ;; esac
	dir=$here/p/$name
	mkdir -p "$dir/src"
	cd "$dir" || exit 1
	echo 'export const a = 1' >src/a.ts
	echo 'export const b = 1' >src/b.ts
	echo '{"compilerOptions":{"outDir":"/tmp/out","module":"esnext","target":"esnext","types":[]},"include":["src"]}' >tsconfig.json
	"$scopefs" run --dir . --with "$tools:ro" -e TOOLS="$tools" -e NODE_PATH="$tools/node_modules" -- "$@" >"$here/out" 2>&1 &
	run=$!
	row="| $name"
	i=0
	until grep -q "$ready" "$here/out"; do
		i=$((i + 1))
		[ $i -lt 300 ] || { row="$row | did not start"; break; }
		sleep 0.1
	done
	sleep 3
	for step in change replacement 'new file' removal 'new directory'; do
		before=$(wc -c <"$here/out")
		case $step in
		change) echo 'export const a = 2' >src/a.ts ;;
		replacement) echo 'export const b = 2' >"$here/b" && mv "$here/b" src/b.ts ;;
		'new file') echo 'export const c = 1' >src/c.ts ;;
		removal) rm src/c.ts ;;
		'new directory') mkdir src/d && echo 'export const d = 1' >src/d/d.ts ;;
		esac
		i=0 seen=no
		while [ $i -lt 60 ] && [ $seen = no ]; do
			sleep 0.1
			i=$((i + 1))
			[ "$(wc -c <"$here/out")" -eq "$before" ] || seen=yes
		done
		row="$row | $seen"
		sleep 2
	done
	kill -INT $run 2>/dev/null
	wait $run 2>/dev/null
	[ -z "${KEEP:-}" ] || cp "$here/out" "$KEEP/$name.txt"
	echo "$row |"
}

only="$*"
echo "| watcher | change | replacement | new file | removal | new directory |"
echo "|---|---|---|---|---|---|"
watch fs.watch ready node -e 'require("fs").watch(".",{recursive:true},(e,n)=>console.log(e,n));console.log("ready")'
watch chokidar3 ready node -e 'require("chokidar").watch(".",{ignoreInitial:true}).on("all",(e,n)=>console.log(e,n)).on("ready",()=>console.log("ready"))'
watch chokidar4 ready node -e 'require("chokidar4").watch(".",{ignoreInitial:true}).on("all",(e,n)=>console.log(e,n)).on("ready",()=>console.log("ready"))'
watch vite ready node -e 'import(process.env.TOOLS+"/node_modules/vite/dist/node/index.js").then(v=>v.createServer({configFile:false,server:{middlewareMode:true,ws:false}})).then(s=>{s.watcher.on("all",(e,n)=>console.log(e,n));setTimeout(()=>console.log("ready"),3000)})'
watch tsc 'Watching for file changes' node "$tools/node_modules/typescript/bin/tsc" --watch --preserveWatchOutput
watch nodemon 'clean exit' node "$tools/node_modules/nodemon/bin/nodemon.js" --watch src --ext ts --exec 'echo ran'
watch watchdog ready /usr/bin/python3 -c '
import time
from watchdog.observers import Observer
from watchdog.events import FileSystemEventHandler
class H(FileSystemEventHandler):
    def on_any_event(self, e): print(e.event_type, e.src_path, flush=True)
o = Observer(); o.schedule(H(), ".", recursive=True); o.start(); print("ready", flush=True); time.sleep(600)'
watch watchfiles ready env PYTHONPATH="$tools/pyw" python3 -c '
import watchfiles
print("ready", flush=True)
for c in watchfiles.watch("."): print(c, flush=True)'
watch fsnotify ready "$tools/gofsnotify" src
watch inotifywait 'Watches established' inotifywait -m -r -e modify,create,delete,move .
