package engine

import (
	"encoding/json"
	"time"

	"github.com/scopefs/scopefs/internal/peer"
)

// Name is the argv[0] that makes the program an engine process.
const Name = "scopefs-sql"

// The descriptors of an engine process beside its standard streams. Standard input
// carries requests, standard output replies.
const (
	DatabaseFD = 3 + iota // a detached mount of the database file
	JournalFD             // a detached mount of its journal
)

// MaxParams bounds the parameters of a statement.
const MaxParams = 500

// Types are the types of columns. CREATE TABLE AS makes INT and NUM.
var Types = []string{"INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "BOOLEAN"}

// MaxFrame bounds a frame, in bytes.
const MaxFrame = 8 << 20

// Config is the first message to an engine process.
type Config struct {
	FileBytes  int64         `json:"file_bytes"`  // the largest database file
	ValueBytes int           `json:"value_bytes"` // the largest text, blob or row
	SQLBytes   int           `json:"sql_bytes"`   // the longest statement
	PageBytes  int           `json:"page_bytes"`  // the values of one page of a result
	Memory     int64         `json:"memory"`      // bytes of data of the process
	Timeout    time.Duration `json:"timeout"`     // of one statement
}

// Op is the kind of a request.
type Op string

// The operations. The authoriser allows a statement what its operation needs.
const (
	Query  Op = "query"  // reads, on a read-only connection
	Change Op = "change" // changes rows
	Define Op = "define" // creates or alters tables, indexes and views
	Drop   Op = "drop"   // Define, and drops them
	Tables Op = "tables" // lists tables; SQL is the name after which it starts
)

// Request is one statement.
type Request struct {
	Op     Op      `json:"op"`
	SQL    string  `json:"sql"`
	Params []Value `json:"params,omitempty"`
	Offset int64   `json:"offset,omitempty"` // rows of the result to skip
	Limit  int     `json:"limit"`            // rows to return
	Room   *int64  `json:"room,omitempty"`   // bytes by which the file may grow; nil: to its limit
	New    string  `json:"new,omitempty"`    // with Define: the name that the schema must not have yet
}

// Code is the sort of an error.
type Code string

// The codes. Failed is an error of the store: its text is for the operator.
const (
	Denied   Code = "denied"
	Invalid  Code = "invalid"
	Conflict Code = "conflict"
	TooLarge Code = "too_large"
	Busy     Code = "busy"
	Failed   Code = "failed"
)

// Error is why a statement has no result.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Reply is the result of a statement, or of the Config.
type Reply struct {
	Error   *Error    `json:"error,omitempty"`
	Means   []string  `json:"means,omitempty"` // what confines the process
	Columns []string  `json:"columns,omitempty"`
	Rows    [][]Value `json:"rows,omitempty"`
	More    bool      `json:"more,omitempty"` // there are further rows
	Changes int64     `json:"changes,omitempty"`
	LastID  int64     `json:"last_id,omitempty"` // rowid of the last insert
	Tables  []Table   `json:"tables,omitempty"`
}

// Table is a table or view.
type Table struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"` // table or view
	Columns []Column `json:"columns"`
}

// Column is a column of a table.
type Column struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	NotNull    bool   `json:"not_null,omitempty"`
	PrimaryKey bool   `json:"primary_key,omitempty"`
}

// Send writes a message as a frame of one part.
func Send(w *peer.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Write(text)
}

// Receive reads a message. An unknown field is an error.
func Receive(r *peer.Reader, v any) error {
	var text []byte
	if err := r.Read(&text); err != nil {
		return err
	}
	return peer.Decode(text, v)
}
