// Package kv has the drivers of the key-value store: a file of SQLite ([OpenSQLite]), and a
// Redis or Valkey server ([OpenRedis]). Package tools/kv has the tools, and says what a
// store does.
package kv

import (
	"context"

	door "github.com/scopefs/scopefs/tools/kv"
)

// A Store is what both drivers are.
type Store interface {
	door.Store
	Size(ctx context.Context, part string) (int64, error) // bytes of names and values; what has expired may count
	// Forget removes entries of a part, several at a time, and reports whether there may be more.
	Forget(ctx context.Context, part string) (more bool, err error)
	Ping(context.Context) error // whether it works
	Close() error
}

// The types that drivers and tools share.
type (
	// Entry is what a store holds under a name.
	Entry = door.Entry
	// Change names an entry to be changed.
	Change = door.Change
	// Limits bound the part of each agent.
	Limits = door.Limits
)
