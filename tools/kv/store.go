package kv

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// A Store holds entries by name. Names of an agent's entries begin with the
// agent's part, "{id}:", and are longer; see [share.Keys]. Methods may be called
// by several goroutines. Each returns within 5 seconds.
//
// Errors are a *[tools.Error]: [tools.NotFound], [tools.Conflict],
// [tools.TooLarge] for an agent that has used up its part, and
// [tools.Unavailable] for a store that does not answer as it should. After
// Unavailable, a change may have been made.
type Store interface {
	// Get returns the entry of a name.
	Get(ctx context.Context, name string) (Entry, error)

	// Set replaces the value of an entry, and returns the entry without the
	// value. The entry expires after ttl, or never if ttl is 0.
	Set(ctx context.Context, c Change, value string, ttl time.Duration) (Entry, error)

	// Delete removes an entry, and reports whether it existed.
	Delete(ctx context.Context, c Change) (bool, error)

	// List returns at most limit entries, without values, whose names begin with
	// prefix and come after a name, sorted by name. If there may be more, next is
	// the name to continue after. A page may hold fewer entries than limit though
	// there are more.
	List(ctx context.Context, prefix, after string, limit int) (page []Entry, next string, err error)

	// Plain returns the first string that another program has set under one of names.
	Plain(ctx context.Context, names ...string) (e Entry, found bool, err error)
}

// An Entry is the value under a name, with its version.
type Entry struct {
	Name    string
	Value   string
	Bytes   int64 // of the value
	Version int64
	Expires time.Time // zero: never
}

// A Change names an entry to be changed.
type Change struct {
	Part, Name string
	IfVersion  *int64 // the version that the entry must have, 0: it must not exist; nil: any
}

// Check compares the version of an entry, 0 if it does not exist, with
// IfVersion.
func (c Change) Check(version int64) error {
	if c.IfVersion == nil || *c.IfVersion == version {
		return nil
	}
	if version == 0 {
		return tools.Errorf(tools.Conflict, "the key does not exist: if_version is %d", *c.IfVersion).
			Suggest("its version is 0: it was deleted, or has expired")
	}
	return tools.Errorf(tools.Conflict, "the key has version %d: if_version is %d", version, *c.IfVersion).
		Suggest(fmt.Sprintf("read it with kv_get and decide again; version %d is the current one", version))
}

// Limits bound the part of each agent. Entries that have expired do not count.
type Limits struct {
	Keys  int   // default 10,000
	Bytes int64 // of all names and values; default 64 MiB
}

// OrDefault returns the limits with the defaults for what is 0.
func (l Limits) OrDefault() Limits {
	return Limits{cmp.Or(l.Keys, 10_000), cmp.Or(l.Bytes, 64<<20)}
}

// Allow returns an error if a part with this many keys and bytes is too large.
func (l Limits) Allow(keys, bytes int64) error {
	if keys <= int64(l.Keys) && bytes <= l.Bytes {
		return nil
	}
	return tools.Errorf(tools.TooLarge, "the store would have %d keys and %d bytes: the limits are %d and %d", keys, bytes, l.Keys, l.Bytes).
		Suggest("delete keys that are not needed, or set them with ttl_seconds")
}

// NotFound is the error of a key that does not exist.
func NotFound() error {
	return tools.Errorf(tools.NotFound, "the key does not exist").Suggest("kv_list lists the keys")
}

// Unavailable is the error of a store that failed. The agent does not see the
// cause; the log has it.
func Unavailable(cause error, hint string) error {
	return tools.Errorf(tools.Unavailable, "the store failed").Because(cause).Suggest(hint)
}

// Foreign is the error of a store that returned a name outside the agent's part.
func Foreign(cause error) error {
	return Unavailable(fmt.Errorf("the store returned a foreign name: %w", cause), "the operator must check the store")
}
