// Package kv provides the tools kv_get, kv_set, kv_delete and kv_list: a
// key-value store that is divided among agents. Two stores exist: a file of
// SQLite ([OpenSQLite]) that needs no set-up, and a Redis or Valkey server
// ([OpenRedis]).
//
// The door divides a store by [share.Keys] before a tool sees a key, so a tool
// and a store only work with names such as "coder:notes%2Atodo". A name holds
// letters, digits and the characters -._~/@+=,:% only. A store never interprets
// a name: SQLite gets it as a parameter, Redis as an argument.
//
// A version is a number that a store gives to an entry when it is set. No key
// has the same version twice, even after it was deleted or has expired. A caller
// that passes if_version changes the entry only if no other call did since.
package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
)

// The bounds of the tools. [share.Keys] bounds a key.
const (
	MaxValue = 1 << 20              // bytes
	maxTTL   = 10 * 365 * 24 * 3600 // seconds
	maxPage  = 1000                 // entries
	pageText = 256 << 10            // bytes of the keys of a page
	Patience = 5 * time.Second      // how long one call may take

	maxAtOnce = 16 // calls; of one agent, half of them
)

// New returns the tools kv_get, kv_set, kv_delete and kv_list on a store.
func New(store Store) ([]tools.Tool, error) {
	s := service{store}
	turns := tools.NewTurns(maxAtOnce, maxAtOnce/2)
	get, err1 := tools.NewScoped(share.Keys, "kv_get",
		"Get the value of a key, with its version.",
		tools.Hints{Title: "Get a value", Idempotent: true, Waits: true, Turns: turns}, s.get)
	set, err2 := tools.NewScoped(share.Keys, "kv_set",
		"Set the value of a key. With if_version the key is set only if it has that version, 0 meaning that it does not exist.",
		tools.Hints{Title: "Set a value", Writes: true, Acts: true, Destructive: true, Waits: true, Turns: turns}, s.set)
	remove, err3 := tools.NewScoped(share.Keys, "kv_delete",
		"Delete a key. With if_version the key is deleted only if it has that version.",
		tools.Hints{Title: "Delete a value", Writes: true, Acts: true, Destructive: true, Idempotent: true, Waits: true, Turns: turns}, s.delete)
	list, err4 := tools.NewScoped(share.Keys, "kv_list",
		"List the keys that begin with a prefix, without their values. The prefix is literal text, not a pattern.",
		tools.Hints{Title: "List keys", Idempotent: true, Waits: true, Turns: turns}, s.list)
	return []tools.Tool{get, set, remove, list}, errors.Join(err1, err2, err3, err4)
}

type service struct{ store Store }

// getArgs are the arguments of kv_get.
type getArgs struct {
	Key tools.Resource `json:"key"`
}

// Subject returns the key.
func (in getArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// got is the result of kv_get.
type got struct {
	Value   string     `json:"value"`
	Version int64      `json:"version" jsonschema:"pass it as if_version to change the key only if nobody else did"`
	Expires *time.Time `json:"expires,omitempty"`
}

// Content returns the value, and then what is known about it.
func (o got) Content() []tools.Content {
	return []tools.Content{{Text: o.Value}, {Text: "[" + about(o.Version, o.Expires) + "]"}}
}

func (s service) get(ctx context.Context, _ tools.Env, in getArgs) (out got, err error) {
	e, err := s.store.Get(ctx, in.Key.Name())
	if own, ok := errors.AsType[*tools.Error](err); ok && own.Code == tools.NotFound {
		if plain, found, other := s.plain(ctx, in.Key); found || other != nil {
			e, err = plain, other
		}
	}
	if err != nil {
		return out, err
	}
	return got{e.Value, e.Version, expires(e)}, nil
}

// plain returns a string that another program keeps for the agent: under the name of the
// key, or under {id}:{key} with the key as it is. An id has no colon, so both are in the
// agent's part. Such a string has no version.
func (s service) plain(ctx context.Context, key tools.Resource) (Entry, bool, error) {
	part, err := key.Part()
	if err != nil {
		return Entry{}, false, err
	}
	return s.store.Plain(ctx, key.Name(), part+key.Key())
}

// setArgs are the arguments of kv_set.
type setArgs struct {
	Key       tools.Resource `json:"key"`
	Value     string         `json:"value" jsonschema:"at most 1 MiB" limit:"len=1048576"`
	TTL       int64          `json:"ttl_seconds,omitempty" jsonschema:"seconds until the key expires; default: it does not" limit:"min=1,max=315360000"`
	IfVersion *int64         `json:"if_version,omitempty" jsonschema:"set the key only if it has this version; 0: only if it does not exist" limit:"min=0"`
}

// Subject returns the key.
func (in setArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// set is the result of kv_set.
type set struct {
	Version int64      `json:"version" jsonschema:"the version that the key has now"`
	Expires *time.Time `json:"expires,omitempty"`
}

func (s service) set(ctx context.Context, _ tools.Env, in setArgs) (out set, err error) {
	if len(in.Value) > MaxValue {
		return out, tools.Errorf(tools.TooLarge, "the value has %d bytes: the limit is %d", len(in.Value), MaxValue).
			Suggest("split it over several keys, or write a file")
	}
	part, err := in.Key.Part()
	if err != nil {
		return out, err
	}
	e, err := s.store.Set(ctx, Change{part, in.Key.Name(), in.IfVersion}, in.Value, time.Duration(min(in.TTL, maxTTL))*time.Second)
	if err != nil {
		return out, err
	}
	return set{e.Version, expires(e)}, nil
}

// deleteArgs are the arguments of kv_delete.
type deleteArgs struct {
	Key       tools.Resource `json:"key"`
	IfVersion *int64         `json:"if_version,omitempty" jsonschema:"delete the key only if it has this version" limit:"min=1"`
}

// Subject returns the key.
func (in deleteArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// deleted is the result of kv_delete.
type deleted struct {
	Deleted bool `json:"deleted" jsonschema:"false if the key did not exist"`
}

func (s service) delete(ctx context.Context, _ tools.Env, in deleteArgs) (out deleted, err error) {
	part, err := in.Key.Part()
	if err != nil {
		return out, err
	}
	out.Deleted, err = s.store.Delete(ctx, Change{part, in.Key.Name(), in.IfVersion})
	return out, err
}

// listArgs are the arguments of kv_list.
type listArgs struct {
	Prefix tools.Resource `json:"prefix,omitempty" jsonschema:"default: all keys" limit:"empty"`
	Limit  int            `json:"limit,omitempty" jsonschema:"keys in a page; default 100" limit:"min=1,max=1000"`
	Cursor tools.Resource `json:"cursor,omitempty" jsonschema:"next_cursor of the page before" limit:"empty"`
}

// Subject returns the prefix.
func (in listArgs) Subject() (rel, target string) { return "", in.Prefix.Key() }

// listed is a key of a listing.
type listed struct {
	Key     string     `json:"key"`
	Bytes   int64      `json:"bytes" jsonschema:"size of the value"`
	Version int64      `json:"version"`
	Expires *time.Time `json:"expires,omitempty"`
}

// page is the result of kv_list. The order of keys is that of their names.
type page struct {
	Keys       []listed `json:"keys" limit:"items=1000"`
	NextCursor string   `json:"next_cursor,omitempty" jsonschema:"there is more: pass it as cursor"`
}

// Content returns a line for each key.
func (o page) Content() []tools.Content {
	var b strings.Builder
	for _, k := range o.Keys {
		fmt.Fprintf(&b, "%s (%d bytes, %s)\n", tools.Quote(k.Key), k.Bytes, about(k.Version, k.Expires))
	}
	if len(o.Keys) == 0 {
		b.WriteString("There are no such keys.\n")
	}
	if o.NextCursor != "" {
		fmt.Fprintf(&b, "[there is more; go on with cursor %q]\n", o.NextCursor)
	}
	return []tools.Content{{Text: b.String()}}
}

func (s service) list(ctx context.Context, _ tools.Env, in listArgs) (page, error) {
	entries, next, err := s.store.List(ctx, in.Prefix.Name(), in.Cursor.Name(), min(cmp.Or(in.Limit, 100), maxPage))
	if err != nil {
		return page{}, err
	}
	out, size := page{Keys: []listed{}}, 0
	for i, e := range entries {
		key, err := in.Prefix.KeyOf(e.Name)
		if err != nil {
			return page{}, Foreign(err)
		}
		out.Keys = append(out.Keys, listed{key, e.Bytes, e.Version, expires(e)})
		if size += len(key); size >= pageText && i+1 < len(entries) {
			next = e.Name
			break
		}
	}
	if next != "" {
		if out.NextCursor, err = in.Prefix.KeyOf(next); err != nil {
			return page{}, Foreign(err)
		}
	}
	return out, nil
}

func expires(e Entry) *time.Time {
	if e.Expires.IsZero() {
		return nil
	}
	t := e.Expires.UTC()
	return &t
}

func about(version int64, expires *time.Time) string {
	text := fmt.Sprintf("version %d", version)
	if expires != nil {
		text += ", expires " + expires.Format(time.RFC3339)
	}
	return text
}
