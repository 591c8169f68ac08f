package messages

import (
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

func TestCheck(t *testing.T) {
	for text, c := range map[string]struct {
		change func(*Server)
		want   string
	}{
		"nats://127.0.0.1:4222":      {nil, ""},
		"nats://localhost":           {nil, ""},
		"tls://nats.example":         {nil, ""},
		"nats://nats.example":        {nil, "write tls://"},
		"http://127.0.0.1":           {nil, "url: is no address"},
		"nats://":                    {nil, "url: is no address"},
		"nats://127.0.0.1/a":         {nil, "url: is no address"},
		"nats://u:p@127.0.0.1":       {nil, "write user and password"},
		"tls://a.example:4222":       {func(s *Server) { s.Password = nil }, "user: has no password"},
		"tls://b.example:4222":       {func(s *Server) { s.Password = &credential.Source{} }, "password: "},
		"nats://nats.example:4222#x": {func(s *Server) { s.User, s.Password = "", nil }, "url: is no address"},
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		s := Server{URL: u, User: "u", Password: &credential.Source{Env: "X"}}
		if c.change != nil {
			c.change(&s)
		}
		if err := s.Check(); c.want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, c.want, text)
		}
	}
}

// grants are those of the tests.
var grants = Grants{
	Channels: map[string]func(scope.Principal) bool{"team": func(p scope.Principal) bool { return p.ID == "a" || p.ID == "ab" }},
	Inboxes:  map[string]func(scope.Principal) bool{"ab": func(p scope.Principal) bool { return p.ID == "a" }},
}

// TestWithin: a member in a task has what all agents have that bound its call.
func TestWithin(t *testing.T) {
	for name, c := range map[string]struct {
		within []scope.Principal
		want   bool
	}{"itself": {[]scope.Principal{{ID: "a"}}, true}, "with a caller": {[]scope.Principal{{ID: "a"}, {ID: "ab"}}, true}, "with another": {[]scope.Principal{{ID: "a"}, {ID: "b"}}, false}, "nobody": {nil, false}} {
		env := tools.Env{Agent: "a", Within: c.within}
		_, err := grants.channel(env, "team")
		assert.Equal(t, c.want, err == nil, name)
		_, err = grants.inboxOf(tools.Env{Agent: "a", Within: slices.DeleteFunc(slices.Clone(c.within), func(p scope.Principal) bool { return p.ID == "ab" })}, "ab")
		assert.Equal(t, c.want, err == nil, name)
	}
}

// TestInboxOf: an agent that a repository names does not read the inbox of the operator's agent with its id.
func TestInboxOf(t *testing.T) {
	for origin, want := range map[scope.Origin]bool{scope.FromOperator: true, scope.FromRepository: false} {
		_, err := grants.inbox(tools.Env{Agent: "ab", Within: []scope.Principal{{ID: "c", Origin: scope.FromOperator}, {ID: "ab", Origin: origin}}})
		assert.Equal(t, want, err == nil)
	}
}
