package mcp

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// A message that would decode into forty times its size is refused, from a socket
// and from HTTP, wherever the values are in the message.
func TestManyValuesAreNotRead(t *testing.T) {
	many := `[` + strings.Repeat(`{"a":1},`, 1<<20) + `1]`
	set, err := tools.NewSet(tools.Gate{Rules: func() tools.Rules { return nil }})
	require.NoError(t, err)
	face := New(set, Options{})
	defer face.Close()
	for name, message := range map[string]string{
		"arguments": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":` + many + `}}}`,
		"_meta":     `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"a":` + many + `}}}`,
	} {
		ours, theirs := net.Pipe()
		l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
		go func() {
			io.WriteString(theirs, message+"\n")
			theirs.Close()
		}()
		_, err := l.Read(context.Background())
		assert.ErrorIs(t, err, tools.ErrTooMany, name)

		h := Handler(func(*http.Request) (*Face, int) { return face, 0 })
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(message))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.GreaterOrEqual(t, w.Code, 400, name)
	}
}

// A large string counts as one value, whatever it contains.
func TestTextIsOneValue(t *testing.T) {
	assert.NoError(t, new(tools.Tally).Add([]byte(`{"a":"`+strings.Repeat(`{[,\"`, 1<<20)+`"}`)))
}
