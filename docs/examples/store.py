#!/usr/bin/python3
"""A store for scopefs: notes in one SQLite file, which the door divides among agents."""
import json, os, sqlite3, sys

db = sqlite3.connect(os.path.expanduser("~/notes.db"), isolation_level=None)
db.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")


def put(agent, name, text):
    db.execute("REPLACE INTO notes VALUES (?, ?)", (name, text))
    return {"bytes": len(text.encode())}


def get(agent, name):
    row = db.execute("SELECT text FROM notes WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise KeyError("no such note")
    return {"text": row[0]}


def find(agent, prefix):
    end = prefix + "\U0010ffff"
    rows = db.execute("SELECT name FROM notes WHERE name >= ? AND name < ? ORDER BY name LIMIT 100", (prefix, end))
    return {"names": [name for name, in rows]}


def tool(run, description, resources, results={}, reads=True, **arguments):
    schema = {"type": "object", "properties": {name: {"type": "string", "description": text} for name, text in arguments.items()}}
    meta = {"scopefs/resources": resources, "scopefs/results": results}
    return run, {"name": "note_" + run.__name__, "description": description, "inputSchema": schema, "_meta": meta,
                 "annotations": {"readOnlyHint": reads}}


tools = {declared["name"]: (run, declared) for run, declared in (
    tool(put, "Keep a note.", {"name": "keys"}, reads=False, name="its name", text="what it says"),
    tool(get, "Read a note.", {"name": "keys"}, name="its name"),
    tool(find, "List notes.", {"prefix?": "keys"}, {"names/*": "keys"}, prefix="what their names begin with"),
)}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}}
    if method == "tools/list":
        return {"tools": [declared for _, declared in tools.values()]}
    if method != "tools/call":
        return {}
    try:
        out = tools[params["name"]][0](params["_meta"]["scopefs/agent"], **params["arguments"])
        return {"content": [{"type": "text", "text": json.dumps(out)}], "structuredContent": out}
    except (KeyError, TypeError) as e:
        return {"content": [{"type": "text", "text": str(e)}], "isError": True,
                "_meta": {"scopefs/code": "not_found" if isinstance(e, KeyError) else "invalid"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request["method"], request.get("params", {}))}
        print(json.dumps(reply), flush=True)
