package objects

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/objects"
)

// TestObjects is what an agent may rely on.
func TestObjects(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.open(t, nil)
	require.NoError(t, store.Ping(t.Context()))
	c := newClient(t, store, "a", "")

	assert.Equal(t, tools.NotFound, code(c.call(t, "object_get", args{"key": "k"}, nil)))
	first := must[done](t, c, "object_put", args{"key": "k", "content": "one"})
	assert.Equal(t, 3, first.Bytes)
	assert.NotEmpty(t, first.ETag)
	o := must[got](t, c, "object_get", args{"key": "k"})
	assert.WithinDuration(t, time.Now(), o.Modified, time.Minute)
	o.Modified = time.Time{}
	assert.Equal(t, got{"one", "utf-8", 3, first.ETag, time.Time{}}, o)
	assert.FileExists(t, filepath.Join(s.Dir, "agents/a/k"))

	t.Run("conditions", func(t *testing.T) {
		in := func(tag string) args { return args{"key": "k", "content": "two", "if_match": tag} }
		assert.Equal(t, tools.Conflict, code(c.call(t, "object_put", in("0123"), nil)))
		assert.Equal(t, tools.Conflict, code(c.call(t, "object_put", args{"key": "k", "content": "x", "if_absent": true}, nil)))
		second := must[done](t, c, "object_put", in(first.ETag))
		assert.NotEqual(t, first.ETag, second.ETag)
		assert.Equal(t, tools.Conflict, code(c.call(t, "object_put", in(first.ETag), nil)))
		assert.Equal(t, tools.Conflict, code(c.call(t, "object_delete", args{"key": "k", "if_match": first.ETag}, nil)))
		assert.Equal(t, "two", must[got](t, c, "object_get", args{"key": "k"}).Text)
		must[deleted](t, c, "object_delete", args{"key": "k", "if_match": second.ETag})
		assert.Equal(t, tools.NotFound, code(c.call(t, "object_get", args{"key": "k"}, nil)))
		assert.Contains(t, []tools.Code{tools.Conflict, tools.NotFound}, code(c.call(t, "object_put", in(second.ETag), nil)))
		must[done](t, c, "object_put", args{"key": "k", "content": "x", "if_absent": true})
		must[deleted](t, c, "object_delete", args{"key": "k"})
		must[deleted](t, c, "object_delete", args{"key": "k"})
		for _, tag := range []string{"*", "a\"b", "a\r\nX: y", "é"} {
			assert.Equal(t, tools.Invalid, code(c.call(t, "object_put", in(tag), nil)), tag)
		}
	})

	t.Run("contents", func(t *testing.T) {
		binary := string([]byte{0xff, 0xfe, 0, '\r', '\n'})
		for name, content := range map[string]string{
			"empty": "", "text": "Grüße\r\n\t€", "NUL": "a\x00b", "binary": binary, "1 MiB": strings.Repeat("x", door.MaxObject), "1 MiB of bytes": strings.Repeat("\xff", door.MaxObject),
		} {
			in := args{"key": "v", "content": base64.StdEncoding.EncodeToString([]byte(content)), "encoding": "base64"}
			must[done](t, c, "object_put", in)
			o := must[got](t, c, "object_get", args{"key": "v"})
			text := o.Text
			if o.Encoding == "base64" {
				decoded, err := base64.StdEncoding.DecodeString(text)
				require.NoError(t, err)
				text = string(decoded)
			}
			assert.True(t, content == text, name)
			assert.Equal(t, len(content), o.Bytes)
		}
		for _, in := range []args{
			{"key": "v", "content": "=", "encoding": "base64"}, {"key": "v", "content": "x", "encoding": "hex"},
			{"key": "v", "content": strings.Repeat("x", 1398105)}, {"key": "v", "content": "x", "if_match": "a", "if_absent": true},
		} {
			assert.Equal(t, tools.Invalid, code(c.call(t, "object_put", in, nil)))
		}
		assert.Equal(t, tools.TooLarge, code(c.call(t, "object_put", args{"key": "v", "content": strings.Repeat("x", door.MaxObject+1)}, nil)))
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "agents/a/large"), make([]byte, door.MaxObject+1), 0o600))
		assert.Equal(t, tools.TooLarge, code(c.call(t, "object_get", args{"key": "large"}, nil)))
	})

	t.Run("list", func(t *testing.T) {
		var want []string
		for i := range 12 {
			want = append(want, fmt.Sprintf("list/%02d", i))
			must[done](t, c, "object_put", args{"key": want[i], "content": strings.Repeat("x", i)})
		}
		must[done](t, c, "object_put", args{"key": "list2/x", "content": ""})
		for _, limit := range []int{1, 5, 12, 1000} {
			assert.Equal(t, want, c.keys(t, "list", limit), limit)
		}
		p := must[page](t, c, "object_list", args{"path": "list", "limit": 9})
		require.Len(t, p.Objects, 9)
		assert.Equal(t, int64(8), p.Objects[8].Bytes)
		assert.Equal(t, must[got](t, c, "object_get", args{"key": "list/08"}).ETag, p.Objects[8].ETag)
		assert.Equal(t, "list/08", p.NextCursor)
		must[deleted](t, c, "object_delete", args{"key": "list/08"})
		p = must[page](t, c, "object_list", args{"path": "list", "limit": 9, "cursor": p.NextCursor})
		assert.Len(t, p.Objects, 3, "a page is right though its cursor is gone")
		assert.Contains(t, c.keys(t, "", 100), "list2/x")
		assert.Empty(t, c.keys(t, "li", 10), "a path is no prefix of a name")
		require.NoError(t, os.Mkdir(filepath.Join(s.Dir, "agents/a/list/marker"), 0o700))
		assert.Len(t, c.keys(t, "list", 5), 11)
		assert.Equal(t, tools.Invalid, code(c.call(t, "object_list", args{"limit": 1001}, nil)))
	})
}

// TestReadOnly: an agent whose view has access: read changes nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	c := newClient(t, open(t, "http://127.0.0.1:1", nil), "a", "view: {access: read}")
	var names []string
	for _, tool := range c.Set.List() {
		names = append(names, tool.Name)
	}
	assert.ElementsMatch(t, []string{"object_get", "object_list"}, names)
}

// TestNeighbours: no key leads to another agent's objects.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, prefix := range []string{"", "base/dir"} {
		store := s.open(t, func(o *Options) { o.Prefix = prefix })
		a, ab, b := newClient(t, store, "a", ""), newClient(t, store, "ab", ""), newClient(t, store, "b", "")
		for id, c := range map[string]*client{"a": a, "ab": ab, "b": b} {
			must[done](t, c, "object_put", args{"key": "k", "content": "of " + id})
			must[done](t, c, "object_put", args{"key": "b/k", "content": "of " + id})
		}
		for id, c := range map[string]*client{"a": a, "ab": ab, "b": b} {
			assert.Equal(t, "of "+id, must[got](t, c, "object_get", args{"key": "k"}).Text)
			assert.Equal(t, []string{"b/k", "k"}, c.keys(t, "", 1))
		}
		hostile := map[string][]tools.Code{
			"..": {tools.OutsideScope}, "../b/k": {tools.OutsideScope}, "x/../../b/k": {tools.OutsideScope}, "x/..": {tools.OutsideScope},
			"/k": {tools.OutsideScope}, "/agents/b/k": {tools.OutsideScope}, "//k": {tools.OutsideScope}, "x//k": {tools.OutsideScope},
			"./k": {tools.OutsideScope}, ".": {tools.OutsideScope}, "k/": {tools.OutsideScope}, "../b": {tools.OutsideScope},
			"%2e%2e/b/k": {tools.Invalid}, "..%2fb/k": {tools.Invalid}, "%252e%252e/b/k": {tools.Invalid}, `..\b\k`: {tools.Invalid},
			"k\x00": {tools.Invalid}, "k\r\nX-Amz-Acl: public-read": {tools.Invalid}, "k\x7f": {tools.Invalid}, "\x1b": {tools.Invalid},
			strings.Repeat("x", 1025): {tools.Invalid}, strings.Repeat("x/", 505) + "x": {tools.Invalid, tools.NotFound},
		}
		for key, want := range hostile {
			for _, tool := range []string{"object_get", "object_put", "object_delete"} {
				in := args{"key": key}
				if tool == "object_put" {
					in["content"] = "evil"
				}
				if len(want) == 1 {
					assert.Equal(t, want[0], code(a.call(t, tool, in, nil)), "%s %q", tool, key)
				}
			}
			if len(want) == 1 {
				assert.Equal(t, want[0], code(a.call(t, "object_list", args{"path": key}, nil)), "%q", key)
				assert.Equal(t, want[0], code(a.call(t, "object_list", args{"path": "x", "cursor": key}, nil)), "%q", key)
			}
		}
		// Strange keys are keys: of the agent that uses them, and of no other.
		strange := []string{"?acl", "k?versionId=1&delete", "#k", "a b", "a+b", "%", "%zz", "*", "€/ü", "e\u0301", "..x", "x..", "...", "~", ";x", "\u202ex", "<Key>&amp;</Key>", "'\"", "agents/b/k", "a:b", "\u2024\u2024/b"}
		for _, key := range strange {
			must[done](t, a, "object_put", args{"key": "s/" + key, "content": key})
			assert.Equal(t, key, must[got](t, a, "object_get", args{"key": "s/" + key}).Text, key)
		}
		assert.Len(t, a.keys(t, "s", 4), len(strange))
		for _, key := range strange {
			must[deleted](t, a, "object_delete", args{"key": "s/" + key})
		}
		for id, c := range map[string]*client{"a": a, "ab": ab, "b": b} {
			assert.Equal(t, []string{"b/k", "k"}, c.keys(t, "", 100), id)
			assert.Equal(t, "of "+id, must[got](t, c, "object_get", args{"key": "b/k"}).Text)
		}
	}
}

// TestServerStops: a server that is down or does not answer costs a bounded time,
// and the store works again when the server does.
func TestServerStops(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := newClient(t, s.open(t, nil), "a", "")
	hasty := newClient(t, s.open(t, func(o *Options) { o.Timeout = time.Second }), "a", "")
	must[done](t, c, "object_put", args{"key": "k", "content": "one"})

	s.Stop(t)
	began := time.Now()
	err := hasty.call(t, "object_put", args{"key": "k", "content": "two"}, nil)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.Contains(t, err.(*tools.Error).Hint, "may have been made")
	assert.Equal(t, "the server does not answer in time", hasty.Last().Detail)
	s.Kill()
	assert.Equal(t, tools.Unavailable, code(c.call(t, "object_get", args{"key": "k"}, nil)))
	s.Start(t)
	require.Eventually(t, func() bool { return c.call(t, "object_get", args{"key": "k"}, nil) == nil }, 20*time.Second, 20*time.Millisecond)
}

// TestRights: what the server refuses for the operator's sake is told to him.
func TestRights(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, change := range map[string]func(*Options){
		"key":    func(o *Options) { o.AccessKey = "nobody" },
		"bucket": func(o *Options) { o.Bucket = "another" },
		"region": func(o *Options) { o.Region = "eu-west-9" },
	} {
		store := s.open(t, change)
		c := newClient(t, store, "a", "")
		for _, tool := range []string{"object_put", "object_list"} {
			in := args{"key": "k", "content": "x"}
			if tool == "object_list" {
				in = args{}
			}
			err := c.call(t, tool, in, nil)
			assert.Equal(t, tools.Unavailable, code(err), "%s %s", name, tool)
		}
		assert.Error(t, store.Ping(t.Context()), name)
	}
	c := newClient(t, s.open(t, func(o *Options) { o.Addresses = nil }), "a", "")
	assert.Equal(t, tools.Unavailable, code(c.call(t, "object_get", args{"key": "k"}, nil)))
	assert.Contains(t, c.Last().Detail, "not allowed")
}
