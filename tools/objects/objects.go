// Package objects gives each agent a part of a bucket on an S3 server: the objects
// whose names begin with {prefix}/agents/{id}/ ([share.Prefix]).
//
// The agent's keys are clean relative paths, so no key leads to another agent's
// part, and none is read as a path differently by a server that keeps objects in
// files. A name that the server lists outside the part that was asked for fails
// the call. Connections follow the rules of package egress; redirects are errors.
package objects

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
)

// The bounds of the tools.
const (
	MaxObject = 1 << 20   // bytes
	maxName   = 1024      // bytes, of the whole name: that of S3
	MaxPage   = 1000      // objects
	pageText  = 256 << 10 // bytes of the keys of a page
	maxAtOnce = 16        // calls; one agent gets half of them
)

// New returns the tools object_get, object_put, object_delete and object_list on a store, whose names
// begin with prefix.
func New(store Store, prefix string) ([]tools.Tool, error) {
	s, part := service{store}, share.Prefix{Base: prefix}
	turns := tools.NewTurns(maxAtOnce, maxAtOnce/2)
	get, err1 := tools.NewScoped(part, "object_get",
		"Get an object: its text, or its bytes in base64 if they are no text, with its ETag.",
		tools.Hints{Title: "Get an object", Idempotent: true, Waits: true, Turns: turns}, s.get)
	put, err2 := tools.NewScoped(part, "object_put",
		"Put an object. With if_match the object is replaced only if it has that ETag, with if_absent it is made only if it does not exist.",
		tools.Hints{Title: "Put an object", Writes: true, Acts: true, Destructive: true, Waits: true, Turns: turns}, s.put)
	remove, err3 := tools.NewScoped(part, "object_delete",
		"Delete an object. It is no error if there is none.",
		tools.Hints{Title: "Delete an object", Writes: true, Acts: true, Destructive: true, Idempotent: true,
			Waits: true, Turns: turns}, s.delete)
	list, err4 := tools.NewScoped(part, "object_list",
		"List the objects below a path, without their content.",
		tools.Hints{Title: "List objects", Idempotent: true, Waits: true, Turns: turns}, s.list)
	return []tools.Tool{get, put, remove, list}, errors.Join(err1, err2, err3, err4)
}

type service struct{ store Store }

// nameOf returns the name of a key in the bucket. It refuses what is a key of S3, but
// what a server or a proxy before it could read as another path.
func nameOf(r tools.Resource) (string, error) {
	key, name := r.Key(), r.Name()
	switch {
	case len(name) > maxName:
		return "", tools.Errorf(tools.Invalid, "the key is too long by %d bytes", len(name)-maxName)
	case strings.ContainsFunc(key, func(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == utf8.RuneError }):
		return "", tools.Errorf(tools.Invalid, "the key holds a control character or a backslash")
	case network.Encoded(key):
		return "", tools.Errorf(tools.Invalid, "the key is percent-encoded: write the characters themselves")
	}
	return name, nil
}

// getArgs are the arguments of object_get.
type getArgs struct {
	Key tools.Resource `json:"key" jsonschema:"relative path"`
}

// Subject returns the key.
func (in getArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// got is the result of object_get.
type got struct {
	Text     string    `json:"content"`
	Encoding string    `json:"encoding" jsonschema:"of content: utf-8 or base64"`
	Bytes    int       `json:"bytes"`
	ETag     string    `json:"etag" jsonschema:"pass it as if_match to replace the object only if nobody else did"`
	Modified time.Time `json:"modified"`
}

// Content returns the content, and then what is known about it.
func (o got) Content() []tools.Content {
	return []tools.Content{{Text: o.Text}, {Text: fmt.Sprintf("[%s, %d bytes, etag %s]", o.Encoding, o.Bytes, o.ETag)}}
}

func (s service) get(ctx context.Context, _ tools.Env, in getArgs) (out got, err error) {
	name, err := nameOf(in.Key)
	if err != nil {
		return out, err
	}
	found, err := s.store.Get(ctx, name)
	if err != nil {
		return out, err
	}
	out = got{string(found.Content), "utf-8", len(found.Content), etag(found.ETag), found.Modified.UTC()}
	if !utf8.Valid(found.Content) {
		out.Text, out.Encoding = base64.StdEncoding.EncodeToString(found.Content), "base64"
	}
	return out, nil
}

// putArgs are the arguments of object_put.
type putArgs struct {
	Key      tools.Resource `json:"key" jsonschema:"relative path"`
	Content  string         `json:"content" jsonschema:"at most 1 MiB when decoded" limit:"len=1398104"`
	Encoding string         `json:"encoding,omitempty" jsonschema:"of content; utf-8 if absent" limit:"enum=utf-8|base64"`
	IfMatch  string         `json:"if_match,omitempty" jsonschema:"replace the object only if it has this etag" limit:"len=128"`
	IfAbsent bool           `json:"if_absent,omitempty" jsonschema:"put the object only if there is none"`
}

// Subject returns the key.
func (in putArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// done is the result of object_put.
type done struct {
	Bytes int    `json:"bytes"`
	ETag  string `json:"etag"`
}

func (s service) put(ctx context.Context, _ tools.Env, in putArgs) (out done, err error) {
	name, err := nameOf(in.Key)
	if err != nil {
		return out, err
	}
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, tools.Errorf(tools.Invalid, "content: is no base64 in the standard alphabet with padding")
		}
	}
	if len(content) > MaxObject {
		return out, tools.Errorf(tools.TooLarge, "the object has %d bytes: the limit is %d", len(content), MaxObject).
			Suggest("split it over several objects, or write a file")
	}
	if err := checkETag(in.IfMatch); err != nil {
		return out, err
	}
	if in.IfMatch != "" && in.IfAbsent {
		return out, tools.Errorf(tools.Invalid, "if_match and if_absent exclude each other")
	}
	tag, err := s.store.Put(ctx, Put{name, content, in.IfMatch, in.IfAbsent})
	return done{len(content), etag(tag)}, err
}

// deleteArgs are the arguments of object_delete.
type deleteArgs struct {
	Key     tools.Resource `json:"key" jsonschema:"relative path"`
	IfMatch string         `json:"if_match,omitempty" jsonschema:"delete the object only if it has this etag" limit:"len=128"`
}

// Subject returns the key.
func (in deleteArgs) Subject() (rel, target string) { return "", in.Key.Key() }

// deleted is the result of object_delete.
type deleted struct{}

// Content says that the object is deleted.
func (deleted) Content() []tools.Content { return []tools.Content{{Text: "deleted"}} }

func (s service) delete(ctx context.Context, _ tools.Env, in deleteArgs) (out deleted, err error) {
	name, err := nameOf(in.Key)
	if err == nil {
		err = checkETag(in.IfMatch)
	}
	if err == nil {
		err = s.store.Delete(ctx, Delete{name, in.IfMatch})
	}
	return out, err
}

// checkETag checks an ETag that goes into a header. It is without its quotes.
func checkETag(tag string) error {
	if strings.ContainsFunc(tag, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '*' }) {
		return tools.Errorf(tools.Invalid, "if_match: is no etag: write one that object_get, object_put or object_list returned")
	}
	return nil
}

// etag returns the ETag of a server, or "" for one that no if_match may have.
func etag(tag string) string {
	tag = strings.Trim(tag, `"`)
	if len(tag) > 128 || checkETag(tag) != nil {
		return ""
	}
	return tag
}

// listArgs are the arguments of object_list.
type listArgs struct {
	Path   tools.Resource `json:"path,omitempty" jsonschema:"default: all objects; without a slash at its end" limit:"empty"`
	Limit  int            `json:"limit,omitempty" jsonschema:"objects in a page; default 100" limit:"min=1,max=1000"`
	Cursor tools.Resource `json:"cursor,omitempty" jsonschema:"next_cursor of the page before" limit:"empty"`
}

// Subject returns the path.
func (in listArgs) Subject() (rel, target string) { return "", in.Path.Key() }

// listed is an object of a listing.
type listed struct {
	Key      string    `json:"key"`
	Bytes    int64     `json:"bytes"`
	ETag     string    `json:"etag"`
	Modified time.Time `json:"modified"`
}

// page is the result of object_list.
type page struct {
	Objects    []listed `json:"objects" limit:"items=1000"`
	NextCursor string   `json:"next_cursor,omitempty" jsonschema:"there is more: pass it as cursor"`
}

// Content returns a line for each object.
func (o page) Content() []tools.Content {
	var b strings.Builder
	for _, k := range o.Objects {
		fmt.Fprintf(&b, "%s (%d bytes, etag %s)\n", tools.Quote(k.Key), k.Bytes, k.ETag)
	}
	if len(o.Objects) == 0 {
		b.WriteString("There are no such objects.\n")
	}
	if o.NextCursor != "" {
		fmt.Fprintf(&b, "[there is more; go on with cursor %q]\n", o.NextCursor)
	}
	return []tools.Content{{Text: b.String()}}
}

func (s service) list(ctx context.Context, _ tools.Env, in listArgs) (page, error) {
	prefix, err := nameOf(in.Path)
	if err != nil {
		return page{}, err
	}
	if in.Path.Key() != "" {
		prefix += "/"
	}
	after := ""
	if in.Cursor.Key() != "" {
		if after, err = nameOf(in.Cursor); err != nil {
			return page{}, err
		}
	}
	limit := cmp.Or(in.Limit, 100)
	out, size := page{Objects: []listed{}}, 0
	for more := true; more; {
		found, err := s.store.List(ctx, Listing{prefix, after, limit + 1 - len(out.Objects)})
		if err != nil {
			return page{}, err
		}
		for _, o := range found.Objects {
			if !strings.HasPrefix(o.Name, prefix) || o.Name <= after {
				return page{}, Unavailable(errors.New("the driver listed a name that was not asked for"), "the operator must check the store")
			}
			after = o.Name
			key, err := in.Path.KeyOf(o.Name)
			if err != nil { // of the part, and no key of an agent: a directory's marker, for example
				continue
			}
			if n := len(out.Objects); n == limit || size >= pageText {
				out.NextCursor = out.Objects[n-1].Key
				return out, nil
			}
			size += len(key)
			out.Objects = append(out.Objects, listed{key, o.Bytes, etag(o.ETag), o.Modified.UTC()})
		}
		more = found.More && len(found.Objects) > 0
	}
	return out, nil
}
