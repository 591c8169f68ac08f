package engine

import wire "github.com/scopefs/scopefs/tools/sql/engine"

// The messages, whose both ends know them.
type (
	// Config is the first message.
	Config = wire.Config
	// Request is one statement.
	Request = wire.Request
	// Reply is the result of a statement.
	Reply = wire.Reply
	// Error is why a statement has no result.
	Error = wire.Error
	// Op is what a request does.
	Op = wire.Op
	// Table is a table or view.
	Table = wire.Table
	// Column is a column of a table.
	Column = wire.Column
	// Value is a value of SQLite.
	Value = wire.Value
)

// The operations and codes of the messages.
const (
	Query  = wire.Query
	Change = wire.Change
	Define = wire.Define
	Drop   = wire.Drop
	Tables = wire.Tables

	Denied   = wire.Denied
	Invalid  = wire.Invalid
	Conflict = wire.Conflict
	TooLarge = wire.TooLarge
	Busy     = wire.Busy
	Failed   = wire.Failed
)

func wrong(code wire.Code, message, hint string) *Error {
	return &Error{Code: code, Message: message, Hint: hint}
}
