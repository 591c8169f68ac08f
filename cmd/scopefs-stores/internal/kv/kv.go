// Package kv has the drivers of the key-value store: a file of SQLite ([OpenSQLite]), and a
// Redis or Valkey server ([OpenRedis]). Package tools/kv has the tools, and says what a
// store does.
package kv

import door "github.com/scopefs/scopefs/tools/kv"

// The types that drivers and tools share.
type (
	// Store is what both drivers are.
	Store = door.Store
	// Entry is what a store holds under a name.
	Entry = door.Entry
	// Change names an entry to be changed.
	Change = door.Change
	// Limits bound the part of each agent.
	Limits = door.Limits
)
