package mcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
)

// TestLeavesWhileItWaits: a client over HTTP that leaves while its message waits for the share of a processor gives back what it has.
func TestLeavesWhileItWaits(t *testing.T) {
	b := newBench(t, "", nil)
	share := limit.NewShare(time.Microsecond, time.Second)
	b.face.opt.Inbox = NewInbox(share)
	share.Spend(time.Second - 40*time.Microsecond) // enough for the head
	h := Handler(func(*http.Request) (*Face, int) { return b.face, 0 })
	ctx, leave := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, leave)
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":%q}}`, strings.Repeat("y", 2*shortMessage))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	assert.NotPanics(t, func() { h.ServeHTTP(httptest.NewRecorder(), r) })
	free, err := b.face.opt.Inbox.long.Take(t.Context())
	require.NoError(t, err)
	free()
	assert.Zero(t, b.face.opt.Inbox.held.Held())
}

// TestKeepAccounts: a small message in a large line does not keep the line, which nobody accounts for.
func TestKeepAccounts(t *testing.T) {
	rest := strings.Repeat("y", 2*largeMessage)
	for name, text := range map[string]string{
		"beside":  fmt.Sprintf(`{"jsonrpc":"2.0","id":"the id","method":"tools/call","params":{"name":"read_file"},"x":%q}`, rest),
		"no rest": fmt.Sprintf(`{"jsonrpc":"2.0","id":"the id","method":"tools/call","params":{"name":"read_file","x":%q}}`, rest),
	} {
		line := []byte(text)
		m, id, err := decode(line, nil)
		require.NoError(t, err)
		m, id = keep(m, id, len(line))
		within := func(part []byte) bool {
			begin, at := uintptr(unsafe.Pointer(&line[0])), uintptr(unsafe.Pointer(&part[0]))
			return at >= begin && at < begin+uintptr(len(line))
		}
		assert.False(t, within(id), name)
		assert.Equal(t, name == "no rest", within(m.(*jsonrpc.Request).Params), name)
	}
}

// TestFullClientHoldsNobody: a client whose messages under way are as many as they may be waits with a long one. Other clients of the agent
// send theirs meanwhile, and what waits is accounted for.
func TestFullClientHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inbox := NewInbox(tools.NewShare())
		client := func() (*lines, net.Conn) {
			ours, theirs := net.Pipe()
			return newLines(ours, inbox, func(int) (func(), bool) { return func() {}, true }), theirs
		}
		text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":%q}}`+"\n", strings.Repeat("y", 4*shortMessage))
		full, his := client()
		for range maxOpen {
			full.open <- struct{}{}
		}
		over := make(chan error)
		go func() {
			_, err := full.Read(t.Context())
			over <- err
		}()
		go io.WriteString(his, text)
		time.Sleep(time.Minute)
		assert.EqualValues(t, len(text), inbox.held.Held())

		other, its := client()
		go io.WriteString(its, text)
		read := make(chan error, 1)
		go func() {
			_, err := other.Read(t.Context())
			read <- err
		}()
		time.Sleep(time.Minute)
		select {
		case err := <-read:
			assert.NoError(t, err)
		default:
			t.Error("it waits for the calls of another client")
		}
		full.Close()
		assert.ErrorIs(t, <-over, io.EOF)
		other.Close()
		other.freeAll()
		assert.Zero(t, inbox.held.Held())
		its.Close()
		his.Close()
		time.Sleep(time.Minute)
	})
}
