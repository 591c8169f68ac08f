package rpc

import "encoding/json"

// MethodKept is the method of a KeptLine, a notification that is for scopefs mcp alone.
const MethodKept = "notifications/scopefs/call"

// ResumePrefix and the id of a call are the method of the request by which scopefs mcp resumes a call: otherwise the request is
// that of the client, which the daemon before has received.
const ResumePrefix = "scopefs/resume/"

type keptNote struct {
	Version string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  struct {
		ID   json.RawMessage `json:"id"`
		Call string          `json:"call"`
	} `json:"params"`
}

// KeptLine returns the line by which scopefs mcp learns that the call of a request outlives the daemon.
func KeptLine(id []byte, call string) []byte {
	note := keptNote{Version: "2.0", Method: MethodKept}
	note.Params.ID, note.Params.Call = id, call
	text, _ := json.Marshal(note) // cannot fail: the id is JSON
	return append(text, '\n')
}

// ParseKept reads a KeptLine.
func ParseKept(line []byte) (id json.RawMessage, call string, err error) {
	var note keptNote
	err = json.Unmarshal(line, &note)
	return note.Params.ID, note.Params.Call, err
}
