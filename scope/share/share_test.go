package share

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func TestStrategyNames(t *testing.T) {
	for name, c := range map[string]struct {
		s         Strategy
		key, want string
		err       error
	}{
		"prefix":           {Prefix{"/srv"}, "a/b", "/srv/agents/x/a/b", nil},
		"prefix, no base":  {Prefix{}, "a", "agents/x/a", nil},
		"prefix up":        {Prefix{"/srv"}, "../y/b", "", ErrOutside},
		"prefix within up": {Prefix{"/srv"}, "a/../../y", "", ErrOutside},
		"prefix only up":   {Prefix{"/srv"}, "..", "", ErrOutside},
		"prefix absolute":  {Prefix{"/srv"}, "/etc/passwd", "", ErrOutside},
		"prefix doubled":   {Prefix{"/srv"}, "a//b", "", ErrOutside},
		"prefix itself":    {Prefix{"/srv"}, ".", "", ErrOutside},
		"prefix NUL":       {Prefix{"/srv"}, "a\x00b", "", ErrKey},
		"prefix dots":      {Prefix{"/srv"}, "..a", "/srv/agents/x/..a", nil},
		"file":             {File{"/state/db"}, "", "/state/db/agent_x.db", nil},
		"file named":       {File{"/state/db"}, "y", "", ErrOutside},
		"schema":           {Schemas{}, "", "agent_x", nil},
		"schema named":     {Schemas{}, "agent_y", "", ErrOutside},
		"key":              {Keys, "a", "x:a", nil},
		"key with colon":   {Keys, "y:a", "x:y%3Aa", nil},
		"key with percent": {Keys, "%3A", "x:%253A", nil},
		"key CRLF":         {Keys, "a\r\nDEL b", "x:a%0D%0ADEL%20b", nil},
		"key pattern":      {Keys, "*", "x:%2A", nil},
		"key of all":       {Keys, "", "x:", nil},
		"prefix of all":    {Prefix{"/srv"}, "", "/srv/agents/x/", nil},
		"subject of none":  {Subjects{}, "", "x.", nil},
		"key NUL":          {Keys, "\x00", "", ErrKey},
		"key long":         {Keys, strings.Repeat("k", 10<<20), "", ErrKey},
		"bucket":           {Buckets, "a_b.c-d", "x_a-5Fb-2Ec-2Dd", nil},
		"subject":          {Subjects{}, "jobs.done", "x.jobs.done", nil},
		"subject wild":     {Subjects{}, "jobs.*", "", ErrKey},
		"subject all":      {Subjects{}, ">", "", ErrKey},
		"subject $":        {Subjects{}, "$JS.API.STREAM.DELETE.y_messages", "", ErrKey},
		"subject inner $":  {Subjects{}, "a.$SYS", "", ErrKey},
		"subject NBSP":     {Subjects{}, "a\u00a0b", "", ErrKey},
		"subject C1":       {Subjects{}, "a\u0085b", "", ErrKey},
		"subject dots":     {Subjects{}, ".a", "", ErrKey},
		"subject last dot": {Subjects{}, "a.", "", ErrKey},
		"subject empty":    {Subjects{}, "a..b", "", ErrKey},
		"subject space":    {Subjects{}, "a b", "", ErrKey},
		"subject CRLF":     {Subjects{}, "a\r\nPUB y.b 0", "", ErrKey},
		"none":             {None{}, "general", "general", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.s.Apply("x", c.key)
			if c.err != nil {
				assert.ErrorIs(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			back, err := c.s.Enforce("x", got)
			require.NoError(t, err)
			assert.Equal(t, c.key, back)
		})
	}
}

// TestStrategyNeighbours checks that no name of one agent is in the part of
// another, even if one id is a prefix of the other.
func TestStrategyNeighbours(t *testing.T) {
	ids := []scope.ID{"a", "ab", "a-b", "a-", "0", "b"}
	keys := []string{"k", "b:k", ":k", "b.k", "b/k", "-k", "b_k", "%3A", "a/b/c", "agents"}
	for _, s := range []Strategy{Prefix{"/srv"}, Prefix{}, Keys, Buckets, Subjects{}} {
		for _, id := range ids {
			for _, key := range keys {
				name, err := s.Apply(id, key)
				if err != nil {
					continue
				}
				for _, other := range ids {
					_, err := s.Enforce(other, name)
					assert.Equal(t, other == id, err == nil, "%T: %s of %s for %s", s, name, id, other)
				}
			}
		}
	}
}

// FuzzStrategy checks that Apply and Enforce are inverse, and that a name has
// one owner.
func FuzzStrategy(f *testing.F) {
	for _, key := range []string{"a", "../a", "a:b", "a%3Ab", "a.b", "\xff", "a_b-5F"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		for _, s := range []Strategy{Prefix{"/srv"}, Keys, Buckets, Subjects{}} {
			if name, err := s.Apply("ab", key); err == nil {
				back, err := s.Enforce("ab", name)
				require.NoError(t, err, "%T %q", s, name)
				require.Equal(t, key, back)
				_, err = s.Enforce("a", name)
				require.ErrorIs(t, err, ErrOutside, "%T %q", s, name)
			}
			if back, err := s.Enforce("ab", key); err == nil { // the key used as a name
				name, err := s.Apply("ab", back)
				require.NoError(t, err)
				require.Equal(t, key, name)
			}
		}
	})
}

// tenant is a strategy of another program, for rows with a column for the
// agent.
type tenant struct{ table string }

func (s tenant) Apply(id scope.ID, key string) (string, error) {
	return fmt.Sprintf("%s/%s/%x", s.table, id, key), nil
}

func (s tenant) Enforce(id scope.ID, name string) (string, error) {
	rest, ok := strings.CutPrefix(name, s.table+"/"+string(id)+"/")
	var key string
	if _, err := fmt.Sscanf(rest, "%x", &key); !ok || err != nil {
		return "", ErrOutside
	}
	return key, nil
}

// A custom strategy maps an agent's keys to the names of a resource that
// scopefs does not support. This one is for a table with a column for the
// agent.
func ExampleStrategy() {
	var rows Strategy = tenant{table: "notes"}
	name, _ := rows.Apply("research-01", "x")
	fmt.Println(name)
	key, _ := rows.Enforce("research-01", name)
	fmt.Println(key)
	_, err := rows.Enforce("research-02", name)
	fmt.Println(err)
	// Output:
	// notes/research-01/78
	// x
	// outside the scope
}

// TestStrategyPage holds docs/strategies.md to the code: each row of its table is true.
func TestStrategyPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/strategies.md")
	require.NoError(t, err)
	strategies := map[string]Strategy{
		"Prefix": Prefix{Base: "/srv"}, "File": File{Dir: "/state/db"}, "Keys": Keys, "Buckets": Buckets, "Subjects": Subjects{}, "None": None{}, "Schemas": Schemas{},
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		s := strategies[strings.Trim(cells[0], " ")]
		if s == nil || len(cells) != 3 {
			continue
		}
		rows++
		key, err := strconv.Unquote(strings.Trim(cells[1], "` "))
		require.NoError(t, err, line)
		want := strings.Trim(cells[2], "` ")
		name, err := s.Apply("a", key)
		switch want {
		case "outside_scope":
			assert.ErrorIs(t, err, ErrOutside, line)
		case "invalid":
			assert.ErrorIs(t, err, ErrKey, line)
		default:
			assert.NoError(t, err, line)
			assert.Equal(t, want, name, line)
			back, err := s.Enforce("a", name)
			assert.NoError(t, err, line)
			assert.Equal(t, key, back, line)
			if _, none := s.(None); !none {
				for _, other := range []scope.ID{"a-b", "ab", "b"} {
					_, err = s.Enforce(other, name)
					assert.ErrorIs(t, err, ErrOutside, "%s: %s", other, line)
				}
			}
		}
	}
	assert.Greater(t, rows, 20)
}

// TestStrategyLongID: an id whose role PostgreSQL would cut off has none.
func TestStrategyLongID(t *testing.T) {
	_, err := Schemas{}.Apply(scope.ID(strings.Repeat("a", 57)), "")
	assert.NoError(t, err)
	id := scope.ID(strings.Repeat("a", 58))
	_, err = Schemas{}.Apply(id, "")
	assert.ErrorIs(t, err, ErrKey)
	_, err = Schemas{}.Enforce(id, fmt.Sprintf("agent_%.57s", id))
	assert.ErrorIs(t, err, ErrOutside)
}
