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
	Channels: map[string]func(string) bool{"team": func(id string) bool { return id == "a" || id == "ab" }},
	Inboxes:  map[string]func(string) bool{"ab": func(id string) bool { return id == "a" }},
}

// TestWithin: a member in a task has what all agents have that bound its call.
func TestWithin(t *testing.T) {
	for name, c := range map[string]struct {
		within []scope.ID
		want   bool
	}{"itself": {[]scope.ID{"a"}, true}, "with a caller": {[]scope.ID{"a", "ab"}, true}, "with another": {[]scope.ID{"a", "b"}, false}, "nobody": {nil, false}} {
		env := tools.Env{Agent: "a", Within: c.within}
		_, err := grants.channel(env, "team")
		assert.Equal(t, c.want, err == nil, name)
		_, err = grants.inboxOf(tools.Env{Agent: "a", Within: slices.DeleteFunc(slices.Clone(c.within), func(id scope.ID) bool { return id == "ab" })}, "ab")
		assert.Equal(t, c.want, err == nil, name)
	}
}
