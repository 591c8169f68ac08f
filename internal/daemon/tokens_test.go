package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
)

// tokensOf returns the tokens of a state with a list of them.
func tokensOf(t *testing.T, list ...api.Token) *tokens {
	all := newTokens(t.TempDir(), func(audit.Event) {})
	require.NoError(t, all.change(func(now map[string]api.Token) error {
		for _, one := range list {
			now[one.ID] = one
		}
		return nil
	}))
	return all
}

func (t *tokens) given(text string) (*token, error) {
	r := httptest.NewRequest(http.MethodGet, "/mcp", nil)
	r.Header.Set("Authorization", "Bearer "+text)
	return t.of(r)
}

// TestTokenEnds: a token is what the list or its own text says, which nobody without the key can change. In a text of an earlier
// release no end may be written: it has the end of all of those.
func TestTokenEnds(t *testing.T) {
	later := time.Now().Add(time.Hour).Truncate(time.Second)
	one, two := api.Token{ID: "taaaaaaaaa", Agent: "a", Ends: later}, api.Token{ID: "tbbbbbbbbb", Agent: "b", Ends: later}
	all := tokensOf(t, one, two)
	require.NoError(t, os.WriteFile(filepath.Join(all.state, "http.old"), []byte(later.UTC().Format(time.RFC3339)), 0o600))
	key, err := all.key()
	require.NoError(t, err)
	dated := func(key string) string { return signed([]byte(key), fmt.Sprintf("a.%d", later.Unix())) }
	ofOne := signed(key, "a.taaaaaaaaa")
	mac := ofOne[strings.LastIndex(ofOne, "."):]
	for name, c := range map[string]struct {
		text        string
		ok, earlier bool
	}{
		"of the list":                   {text: ofOne, ok: true},
		"of another agent":              {text: "b.taaaaaaaaa" + mac},
		"of another's, signed":          {text: signed(key, "a.tbbbbbbbbb")},
		"of no list, signed":            {text: signed(key, "a.tccccccccc")},
		"of another key":                {text: signed([]byte("other"), "a.taaaaaaaaa")},
		"without a signature":           {text: "a.taaaaaaaaa"},
		"with an end":                   {text: dated(string(key)), ok: true, earlier: true},
		"with another end":              {text: strings.Replace(dated(string(key)), ".", ".9", 1)},
		"with a sign":                   {text: strings.Replace(dated(string(key)), ".", ".+", 1)},
		"with an end, of another key":   {text: dated("other")},
		"of an earlier release":         {text: signed(key, "a"), ok: true, earlier: true},
		"whose end was cut off":         {text: "a." + strings.SplitN(dated(string(key)), ".", 3)[2]},
		"of an earlier release, an end": {text: strings.Replace(signed(key, "a"), ".", ".9999999999.", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := all.given(c.text)
			require.NoError(t, err)
			require.Equal(t, c.ok, got != nil)
			if got != nil {
				assert.Equal(t, later.Unix(), got.Ends.Unix())
				assert.EqualValues(t, "a", got.Agent)
				assert.Equal(t, c.earlier, got.earlier)
			}
		})
	}
}

// TestTokenRevoked: a request ends with its token, and one that begins later is refused, also by the next daemon.
func TestTokenRevoked(t *testing.T) {
	later := time.Now().Add(time.Hour)
	all := tokensOf(t, api.Token{ID: "taaaaaaaaa", Agent: "a", Ends: later})
	key, err := all.key()
	require.NoError(t, err)
	text := signed(key, "a.taaaaaaaaa")
	got, err := all.given(text)
	require.NoError(t, err)
	h := &httpFace{patience: time.Minute}
	started := make(chan struct{})
	ended := make(chan error, 1)
	go h.bounded(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/mcp", nil), agent.New(&agent.Shared{Shared: session.Shared{Host: &account.Host{}}}, "a"), got,
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			until, limited := r.Context().Deadline()
			assert.True(t, limited && until.Equal(later.Round(0)), "a stream ends with its token")
			close(started)
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		}))
	<-started
	require.NoError(t, all.change(func(now map[string]api.Token) error { delete(now, "taaaaaaaaa"); return nil }))
	assert.ErrorIs(t, <-ended, context.Canceled)
	for _, of := range []*tokens{all, newTokens(all.state, func(audit.Event) {})} {
		got, err = of.given(text)
		assert.NoError(t, err)
		assert.Nil(t, got)
	}
}

// TestTokensOfAnotherKey: without the key of its tokens a list is of none.
func TestTokensOfAnotherKey(t *testing.T) {
	all := tokensOf(t, api.Token{ID: "taaaaaaaaa", Agent: "a", Ends: time.Now().Add(time.Hour)})
	assert.Len(t, all.list(), 1)
	require.NoError(t, os.Remove(filepath.Join(all.state, "http.key")))
	next := newTokens(all.state, func(audit.Event) {})
	require.NoError(t, next.load())
	assert.Empty(t, next.list())
}

// TestTokensUnread: a list that cannot be read makes no token valid, and is not written over.
func TestTokensUnread(t *testing.T) {
	all := tokensOf(t, api.Token{ID: "taaaaaaaaa", Agent: "a", Ends: time.Now().Add(time.Hour)})
	key, err := all.key()
	require.NoError(t, err)
	name := filepath.Join(all.state, tokensFile)
	for what, bad := range map[string]string{"no JSON": "[", "too long": strings.Repeat(" ", maxTokensFile+1)} {
		require.NoError(t, os.WriteFile(name, []byte(bad), 0o600))
		next := newTokens(all.state, func(audit.Event) {})
		got, err := next.given(signed(key, "a.taaaaaaaaa"))
		assert.ErrorContains(t, err, "list of tokens: "+name, what)
		assert.Nil(t, got)
		assert.Error(t, next.change(func(map[string]api.Token) error { return nil }), what)
		kept, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, bad, string(kept))
		require.NoError(t, os.Remove(name))
		assert.NoError(t, next.load(), "tried again")
	}
	list, err := json.Marshal([]api.Token{{ID: "taaaaaaaaa", Agent: scope.ID("a")}})
	require.NoError(t, err)
	assert.Less(t, maxTokens*(len(list)+200), maxTokensFile, "what is written can be read")
}

// TestTokenOrigin: a token is for processes of one user. Root and the daemon's user need none.
func TestTokenOrigin(t *testing.T) {
	other, third := uint32(os.Geteuid())+4321, uint32(os.Geteuid())+4322
	one := &token{Token: api.Token{Agent: "a", Origin: &other}}
	for uid, ok := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, other: true, third: false} {
		assert.Equal(t, ok, one.admits(uid, nil), uid)
	}
	assert.True(t, (&token{earlier: true}).admits(third, nil))
}
