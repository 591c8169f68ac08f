package kv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/kv"
)

// stores are the kinds of store. Each opens an empty one.
var stores = map[string]func(t *testing.T, limits Limits) Store{
	"SQLite": func(t *testing.T, limits Limits) Store {
		return openSQLite(t, filepath.Join(inMemory(t), "kv.db"), limits)
	},
	"Redis": func(t *testing.T, limits Limits) Store { return startServer(t).open(t, limits) },
}

// inMemory returns a directory on a tmpfs, if there is one: these tests do not wait for
// disks.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "kv")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openSQLite(t *testing.T, file string, limits Limits) *SQLite {
	s, err := OpenSQLite(file, limits)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// onStores runs a test over each kind of store.
func onStores(t *testing.T, limits Limits, test func(t *testing.T, store Store)) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, limits))
		})
	}
}

// client calls the tools as one agent.
type client struct{ *agenttest.Agent }

func newClient(t *testing.T, store Store, id, front string) *client {
	t.Helper()
	ours, err := door.New(store)
	require.NoError(t, err)
	return &client{agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, front, ours)}
}

type args map[string]any

// The results of the tools.
type (
	got struct {
		Value   string
		Version int64
		Expires *time.Time
	}
	set struct {
		Version int64
		Expires *time.Time
	}
	deleted struct{ Deleted bool }
	page    struct {
		Keys []struct {
			Key            string
			Bytes, Version int64
		}
		NextCursor string `json:"next_cursor"`
	}
)

const maxTTL = 10 * 365 * 24 * 3600 // seconds

func (c *client) call(t *testing.T, tool string, in args, out any) error {
	t.Helper()
	return c.Call(t.Context(), t, tool, in, out)
}

// must calls a tool and fails the test if the call fails.
func must[T any](t *testing.T, c *client, tool string, in args) (out T) {
	t.Helper()
	require.NoError(t, c.call(t, tool, in, &out))
	return out
}

var code = agenttest.Code

// keys returns the keys of all pages, of limit keys each.
func (c *client) keys(t *testing.T, prefix string, limit int) (all []string) {
	t.Helper()
	in := args{"prefix": prefix, "limit": limit}
	return agenttest.Pages(t, in, func() (keys []string, next string) {
		p := must[page](t, c, "kv_list", in)
		for _, k := range p.Keys {
			keys = append(keys, k.Key)
		}
		return keys, p.NextCursor
	})
}

// TestConformance is what an agent may rely on, whatever the store is.
func TestConformance(t *testing.T) {
	onStores(t, Limits{}, func(t *testing.T, store Store) {
		require.NoError(t, store.Ping(t.Context()))
		c := newClient(t, store, "a", "")

		assert.Equal(t, tools.NotFound, code(c.call(t, "kv_get", args{"key": "k"}, nil)))
		first := must[set](t, c, "kv_set", args{"key": "k", "value": "one"})
		assert.Positive(t, first.Version)
		assert.Nil(t, first.Expires)
		assert.Equal(t, got{"one", first.Version, nil}, must[got](t, c, "kv_get", args{"key": "k"}))

		t.Run("if_version", func(t *testing.T) {
			in := func(version int64) args { return args{"key": "k", "value": "two", "if_version": version} }
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_set", in(0), nil)))
			err := c.call(t, "kv_set", in(first.Version+1), nil)
			assert.Equal(t, tools.Conflict, code(err))
			assert.Contains(t, err.(*tools.Error).Hint, fmt.Sprint(first.Version), "the current version")
			second := must[set](t, c, "kv_set", in(first.Version))
			assert.Greater(t, second.Version, first.Version)
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_set", in(first.Version), nil)))
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_delete", args{"key": "k", "if_version": first.Version}, nil)))
			assert.Equal(t, "two", must[got](t, c, "kv_get", args{"key": "k"}).Value)
			assert.True(t, must[deleted](t, c, "kv_delete", args{"key": "k", "if_version": second.Version}).Deleted)
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_delete", args{"key": "k", "if_version": second.Version}, nil)))
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_set", in(second.Version), nil)), "it does not exist")
			third := must[set](t, c, "kv_set", in(0))
			assert.Greater(t, third.Version, second.Version, "no version twice, also after a delete")
		})

		t.Run("delete", func(t *testing.T) {
			must[set](t, c, "kv_set", args{"key": "d", "value": ""})
			assert.Equal(t, "", must[got](t, c, "kv_get", args{"key": "d"}).Value)
			assert.True(t, must[deleted](t, c, "kv_delete", args{"key": "d"}).Deleted)
			assert.False(t, must[deleted](t, c, "kv_delete", args{"key": "d"}).Deleted)
			assert.Equal(t, tools.NotFound, code(c.call(t, "kv_get", args{"key": "d"}, nil)))
		})

		t.Run("values", func(t *testing.T) {
			for name, value := range map[string]string{
				"text": "Grüße\r\n\t€", "NUL": "a\x00b", "RESP": "$-1\r\n*1\r\n$8\r\nFLUSHALL\r\n", "SQL": "'); DROP TABLE entries;--",
				"1 MiB of NUL": strings.Repeat("\x00", door.MaxValue),
			} {
				must[set](t, c, "kv_set", args{"key": "v", "value": value})
				assert.True(t, value == must[got](t, c, "kv_get", args{"key": "v"}).Value, name)
			}
			assert.Equal(t, tools.Invalid, code(c.call(t, "kv_set", args{"key": "v", "value": strings.Repeat("x", door.MaxValue+1)}, nil)))
			assert.Equal(t, tools.TooLarge, code(c.call(t, "kv_set", args{"key": "v", "value": strings.Repeat("€", door.MaxValue/2)}, nil)))
		})

		t.Run("expiry", func(t *testing.T) {
			before := time.Now()
			out := must[set](t, c, "kv_set", args{"key": "e", "value": "x", "ttl_seconds": 1})
			require.NotNil(t, out.Expires)
			assert.WithinRange(t, *out.Expires, before.Add(time.Second-time.Millisecond), time.Now().Add(time.Second))
			assert.Equal(t, out.Expires, must[got](t, c, "kv_get", args{"key": "e"}).Expires)
			assert.Equal(t, []string{"e"}, c.keys(t, "e", 10))
			require.Eventually(t, func() bool { return code(c.call(t, "kv_get", args{"key": "e"}, nil)) == tools.NotFound }, 10*time.Second, 20*time.Millisecond)
			assert.False(t, time.Now().Before(*out.Expires), "not before its time")
			assert.Empty(t, c.keys(t, "e", 10))
			assert.Equal(t, tools.Conflict, code(c.call(t, "kv_set", args{"key": "e", "value": "y", "if_version": out.Version}, nil)))
			assert.False(t, must[deleted](t, c, "kv_delete", args{"key": "e"}).Deleted)
			again := must[set](t, c, "kv_set", args{"key": "e", "value": "y", "if_version": 0})
			assert.Greater(t, again.Version, out.Version, "no version twice, also after expiry")

			must[set](t, c, "kv_set", args{"key": "e", "value": "y", "ttl_seconds": 1})
			must[set](t, c, "kv_set", args{"key": "e", "value": "z"})
			assert.Nil(t, must[got](t, c, "kv_get", args{"key": "e"}).Expires, "set without a TTL")
			years := must[set](t, c, "kv_set", args{"key": "e", "value": "z", "ttl_seconds": maxTTL})
			assert.WithinDuration(t, time.Now().AddDate(10, 0, 0), *years.Expires, 4*24*time.Hour)
			for _, bad := range []any{0, -1, maxTTL + 1, 1e30, "1"} {
				assert.Equal(t, tools.Invalid, code(c.call(t, "kv_set", args{"key": "e", "value": "z", "ttl_seconds": bad}, nil)), bad)
			}
		})

		t.Run("list", func(t *testing.T) {
			var want []string
			for i := range 25 {
				want = append(want, fmt.Sprintf("list/%02d", i))
				must[set](t, c, "kv_set", args{"key": want[i], "value": strings.Repeat("x", i)})
			}
			must[set](t, c, "kv_set", args{"key": "lisu", "value": ""})
			for _, limit := range []int{1, 7, 25, 1000} {
				assert.Equal(t, want, c.keys(t, "list/", limit), limit)
			}
			p := must[page](t, c, "kv_list", args{"prefix": "list/0", "limit": 9})
			require.Len(t, p.Keys, 9)
			assert.Equal(t, int64(8), p.Keys[8].Bytes)
			assert.Equal(t, must[got](t, c, "kv_get", args{"key": "list/08"}).Version, p.Keys[8].Version)
			assert.Equal(t, "list/08", p.NextCursor)
			// A page is right though its cursor is gone.
			must[deleted](t, c, "kv_delete", args{"key": "list/08"})
			p = must[page](t, c, "kv_list", args{"prefix": "list/0", "limit": 9, "cursor": p.NextCursor})
			assert.Len(t, p.Keys, 1)
			assert.Contains(t, c.keys(t, "", 100), "lisu")
			assert.Empty(t, c.keys(t, "list/*", 10), "a prefix is no pattern")
			assert.Equal(t, tools.Invalid, code(c.call(t, "kv_list", args{"limit": 1001}, nil)))
			for i := range 280 { // the text of a page is bounded: 262 of these
				must[set](t, c, "kv_set", args{"key": fmt.Sprintf("long%03d%s", i, strings.Repeat("\x01", 1000)), "value": ""})
			}
			assert.Len(t, c.keys(t, "long", 1000), 280)
		})
	})
}

// TestReadOnly: an agent whose view has access: read does not change its part.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	c := newClient(t, openSQLite(t, filepath.Join(t.TempDir(), "kv.db"), Limits{}), "a", "view: {access: read}")
	var names []string
	for _, tool := range c.Set.List() {
		names = append(names, tool.Name)
	}
	assert.Equal(t, []string{"kv_get", "kv_list"}, names)
	assert.Equal(t, tools.Denied, code(c.call(t, "kv_set", args{"key": "k", "value": "v"}, nil)))
	assert.Equal(t, tools.Denied, code(c.call(t, "kv_delete", args{"key": "k"}, nil)))
}

// TestPolicy: exclusions and questions hold for a store's tools as for any other.
func TestPolicy(t *testing.T) {
	t.Parallel()
	store := openSQLite(t, filepath.Join(t.TempDir(), "kv.db"), Limits{})
	for front, want := range map[string]map[string]tools.Code{
		"tools: ['kv_*']\npolicy: {tools: {exclude: [kv_delete], ask: [kv_set]}}": {"kv_get": tools.NotFound, "kv_set": tools.Denied, "kv_delete": tools.Denied, "kv_list": ""},
		"tools: []":               {"kv_get": tools.Denied, "kv_set": tools.Denied, "kv_delete": tools.Denied, "kv_list": tools.Denied},
		"tools: [kv_list]":        {"kv_get": tools.Denied, "kv_set": tools.Denied, "kv_delete": tools.Denied, "kv_list": ""},
		"tools: [builtin:kv_get]": {"kv_get": tools.NotFound, "kv_set": tools.Denied, "kv_delete": tools.Denied, "kv_list": tools.Denied},
	} {
		c := newClient(t, store, "a", front)
		for tool, in := range map[string]args{"kv_get": {"key": "k"}, "kv_set": {"key": "k", "value": "v"}, "kv_delete": {"key": "k"}, "kv_list": {}} {
			assert.Equal(t, want[tool], code(c.call(t, tool, in, nil)), "%s: %s", front, tool)
		}
	}
}

// TestHostileKeys: whatever the key is, the call is refused, or the key is one of
// the agent's own. The ids of the agents are prefixes of each other.
func TestHostileKeys(t *testing.T) {
	hostile := map[string]struct {
		key  string
		code tools.Code
	}{
		"star":              {"*", ""},
		"neighbour":         {"ab:secret", ""},
		"neighbour after :": {":ab:secret", ""},
		"rest of an id":     {"b:secret", ""},
		"escaped":           {"%3Asecret", ""},
		"twice escaped":     {"ab%253Asecret", ""},
		"class":             {"[a-z]*:?", ""},
		"hash tag":          {"{ab}:secret", ""},
		"CRLF":              {"k\r\nSET ab:secret owned\r\n", ""},
		"RESP":              {"k\r\n*3\r\n$3\r\nSET\r\n$9\r\nab:secret\r\n$5\r\nowned\r\n", ""},
		"Lua":               {`"); redis.call("SET", "ab:secret", "owned") --`, ""},
		"EVAL":              {"EVAL \"return redis.call('FLUSHALL')\" 0", ""},
		"SCAN":              {"0 MATCH ab:* COUNT 1000", ""},
		"option":            {"--match=*", ""},
		"lex range":         {"+", ""},
		"lex minimum":       {"-", ""},
		"lex bracket":       {"[ab:", ""},
		"SQL":               {"' OR 1=1; DELETE FROM entries; --", ""},
		"LIKE":              {"%", ""},
		"dots":              {"../ab/secret", ""},
		"meta":              {"%s", ""},
		"text":              {"ключ €", ""},
		"full width colon":  {"ab\uff1asecret", ""},
		"composed":          {"\u00e9", ""},
		"decomposed":        {"e\u0301", ""},
		"invisible":         {"\u200bsecret\ufeff", ""},
		"right to left":     {"\u202eterces:ba", ""},
		"upper case":        {"SECRET", ""},
		"1 KiB":             {strings.Repeat("k", 1024), ""},
		"NUL":               {"ab:secret\x00", tools.Invalid},
		"only NUL":          {"\x00", tools.Invalid},
		"empty":             {"", tools.Invalid},
		"1 KiB and a byte":  {strings.Repeat("k", 1025), tools.Invalid},
		"10 MiB":            {strings.Repeat("k", 10<<20), tools.TooLarge},
	}
	onStores(t, Limits{}, func(t *testing.T, store Store) {
		victims := map[string]*client{"ab": newClient(t, store, "ab", ""), "a-b": newClient(t, store, "a-b", ""), "b": newClient(t, store, "b", "")}
		for id, v := range victims {
			must[set](t, v, "kv_set", args{"key": "secret", "value": "of " + id})
		}
		a := newClient(t, store, "a", "")
		for name, h := range hostile {
			t.Run(name, func(t *testing.T) {
				assert.Equal(t, h.code, code(a.call(t, "kv_set", args{"key": h.key, "value": "owned"}, nil)))
				if h.code != "" {
					assert.Equal(t, h.code, code(a.call(t, "kv_get", args{"key": h.key}, nil)))
					assert.Equal(t, h.code, code(a.call(t, "kv_delete", args{"key": h.key}, nil)))
					if h.key != "" { // the whole part
						assert.Equal(t, h.code, code(a.call(t, "kv_list", args{"prefix": h.key}, nil)))
						assert.Equal(t, h.code, code(a.call(t, "kv_list", args{"cursor": h.key}, nil)))
					}
					return
				}
				assert.Equal(t, "owned", must[got](t, a, "kv_get", args{"key": h.key}).Value)
				assert.Equal(t, []string{h.key}, a.keys(t, h.key, 1), "as a prefix it is literal")
				assert.Equal(t, []string{h.key}, a.keys(t, "", 1))
				must[page](t, a, "kv_list", args{"cursor": h.key})
				assert.True(t, must[deleted](t, a, "kv_delete", args{"key": h.key}).Deleted)
				assert.Empty(t, a.keys(t, "", 10))
			})
		}
		for id, v := range victims {
			assert.Equal(t, "of "+id, must[got](t, v, "kv_get", args{"key": "secret"}).Value)
			assert.Equal(t, []string{"secret"}, v.keys(t, "", 10))
		}
	})
}

// TestQuota: one agent uses up its part, and no neighbour's.
func TestQuota(t *testing.T) {
	onStores(t, Limits{Keys: 3, Bytes: 100}, func(t *testing.T, store Store) {
		a, b := newClient(t, store, "a", ""), newClient(t, store, "b", "")
		put := func(c *client, key string, n int) tools.Code {
			return code(c.call(t, "kv_set", args{"key": key, "value": strings.Repeat("x", n)}, nil))
		}
		for _, key := range []string{"1", "2", "3"} {
			assert.Empty(t, put(a, key, 0))
		}
		assert.Equal(t, tools.TooLarge, put(a, "4", 0))
		assert.Empty(t, put(a, "3", 100-3*len("a:1")), "names count")
		assert.Equal(t, tools.TooLarge, put(a, "3", 100-3*len("a:1")+1))
		assert.Equal(t, tools.TooLarge, put(a, "2", 1))
		assert.Empty(t, put(a, "3", 0))
		assert.Empty(t, put(a, "2", 1))
		assert.Empty(t, put(b, "1", 97))
		must[deleted](t, a, "kv_delete", args{"key": "1"})
		assert.Empty(t, put(a, "4", 0))
		// What has expired does not count.
		must[set](t, a, "kv_set", args{"key": "4", "value": "x", "ttl_seconds": 1})
		assert.Equal(t, tools.TooLarge, put(a, "5", 0))
		require.Eventually(t, func() bool { return put(a, "5", 90) == "" }, 10*time.Second, 50*time.Millisecond)
		assert.Equal(t, []string{"2", "3", "5"}, a.keys(t, "", 10))
		for part, want := range map[string]int64{"a:": 100, "b:": 100, "c:": 0} {
			size, err := store.Size(t.Context(), part)
			require.NoError(t, err)
			assert.Equal(t, want, size, part)
		}
	})
}

// TestForget: a part goes, with what it is counted by, and no other. Versions do not start again.
func TestForget(t *testing.T) {
	onStores(t, Limits{}, func(t *testing.T, store Store) {
		a, ab := newClient(t, store, "a", ""), newClient(t, store, "ab", "")
		var last int64
		for i := range 600 {
			last = must[set](t, a, "kv_set", args{"key": fmt.Sprintf("k:%d", i), "value": "x", "ttl_seconds": 1000 + i}).Version
		}
		must[set](t, ab, "kv_set", args{"key": "k:1", "value": "stays"})
		more, err := store.Forget(t.Context(), "a:")
		require.NoError(t, err)
		require.NotEmpty(t, a.keys(t, "", 1000), "a transaction takes no longer for a large part")
		for more {
			more, err = store.Forget(t.Context(), "a:")
			require.NoError(t, err)
		}
		assert.Empty(t, a.keys(t, "", 1000))
		size, err := store.Size(t.Context(), "a:")
		require.NoError(t, err)
		assert.Zero(t, size)
		assert.Equal(t, "stays", must[got](t, ab, "kv_get", args{"key": "k:1"}).Value)
		assert.Greater(t, must[set](t, a, "kv_set", args{"key": "k:599", "value": "anew"}).Version, last)
		assert.Equal(t, []string{"k:599"}, a.keys(t, "", 10))
	})
}

// TestNoLostUpdate: 32 writers count together by if_version.
func TestNoLostUpdate(t *testing.T) {
	const writers, rounds = 32, 4
	onStores(t, Limits{}, func(t *testing.T, store Store) {
		must[set](t, newClient(t, store, "a", ""), "kv_set", args{"key": "n", "value": "0"})
		var wg sync.WaitGroup
		for range writers {
			c := newClient(t, store, "a", "")
			wg.Go(func() {
				for range rounds {
					for {
						var now got
						var n int
						if !assert.NoError(t, c.call(t, "kv_get", args{"key": "n"}, &now)) {
							return
						}
						fmt.Sscan(now.Value, &n)
						err := c.call(t, "kv_set", args{"key": "n", "value": fmt.Sprint(n + 1), "if_version": now.Version}, nil)
						if err == nil {
							break
						}
						if !assert.Equal(t, tools.Conflict, code(err), "%v", err) {
							return
						}
					}
				}
			})
		}
		wg.Wait()
		assert.Equal(t, fmt.Sprint(writers*rounds), must[got](t, newClient(t, store, "a", ""), "kv_get", args{"key": "n"}).Value)
	})
}
