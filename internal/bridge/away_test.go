package bridge

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestStoppedDaemon checks that a stopped daemon counts as lost. Later requests
// are held for holdTime and then fail as not sent.
func TestStoppedDaemon(t *testing.T) {
	s, d := greeted(t, func(b *Bridge) { b.holdTime = 500 * time.Millisecond })
	s.says(call("1"))
	d.gets(call("1"))
	s.down.Store(true)
	s.sick.Store(true)
	id, effect := s.failed()
	assert.Equal(t, []string{"1", "unknown"}, []string{id, effect})
	assert.Equal(t, "warning", s.message())
	s.says(call("2"))
	s.says(call("3"))
	s.says(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	id, effect = s.failed()
	assert.Equal(t, []string{"2", "none"}, []string{id, effect})
	s.sick.Store(false)
	s.down.Store(false)
	d = s.restored()
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	s.answered(d, "4")
	assert.NoError(t, s.end())
}

func TestHeldIsBounded(t *testing.T) {
	s, d := greeted(t, nil)
	s.down.Store(true)
	d.Close()
	assert.Equal(t, "warning", s.message())
	for i := range maxHeld {
		s.says(call(fmt.Sprint(i)))
	}
	s.says(call("1000"))
	id, effect := s.failed()
	assert.Equal(t, []string{"1000", "none"}, []string{id, effect})
	s.says(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`)
	s.says(`{"jsonrpc":"2.0","id":2000,"method":"tools/call","params":{"x":"` + strings.Repeat("x", maxHeldBytes-100) + `"}}`)
	id, _ = s.failed()
	assert.Equal(t, "2000", id)
	s.down.Store(false)
	d = s.restored()
	for i := 1; i < maxHeld; i++ {
		d.gets(call(fmt.Sprint(i)))
	}
	go io.Copy(io.Discard, s.out)
	assert.NoError(t, s.end())
}

func TestGivesUp(t *testing.T) {
	s, d := greeted(t, func(b *Bridge) { b.giveUp = 300 * time.Millisecond })
	s.down.Store(true)
	d.Close()
	assert.Equal(t, "warning", s.message())
	s.says(call("1"))
	id, effect := s.failed()
	assert.Equal(t, []string{"1", "none"}, []string{id, effect})
	assert.ErrorContains(t, <-s.ended, "no daemon for 300ms: nobody is there")
}

// TestRefused checks that the bridge retries a daemon that refuses it until
// giveUp, and does not announce that daemon.
func TestRefused(t *testing.T) {
	need.Long(t, "waits until the bridge gives up")
	s := newStage(t, nil)
	s.daemon().says("scopefs: unknown agent")
	assert.EqualError(t, <-s.ended, "unknown agent")

	s, d := greeted(t, func(b *Bridge) { b.giveUp = 3 * time.Second })
	d.Close()
	assert.Equal(t, "warning", s.message())
	go func() {
		for c := range s.dials {
			io.WriteString(c, "scopefs: the definition does not load\n")
			c.Close()
		}
	}()
	assert.ErrorContains(t, <-s.ended, "the definition does not load")
	assert.Empty(t, s.line())

	s, d = greeted(t, func(b *Bridge) { b.giveUp = 3 * time.Second })
	d.Close()
	assert.Equal(t, "warning", s.message())
	go func() {
		for c := range s.dials {
			io.WriteString(c, strings.ReplaceAll(welcomeLine, "2025", "2031")+"\n")
		}
	}()
	assert.ErrorContains(t, <-s.ended, `version "2031-06-18"`)
}

// TestGarbage checks that a line that is no message reaches the daemon, which answers it,
// and that the session goes on.
func TestGarbage(t *testing.T) {
	s, d := greeted(t, nil)
	s.says("\nhello")
	line, err := d.in.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "hello\n", line)
	const answer = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no JSON"}}`
	d.says(answer)
	s.gets(answer)
	s.answered(d, "1")
	d.Close()
	assert.Equal(t, "warning", s.message())
	s.restored()
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	assert.NoError(t, s.end())
}

// TestClientGoes checks that the client may close its end at any time.
func TestClientGoes(t *testing.T) {
	s, d := greeted(t, nil)
	s.says(call("1"))
	d.gets(call("1"))
	s.in.Close()
	_, err := d.in.ReadByte()
	assert.ErrorIs(t, err, io.EOF, "the daemon sees the end")
	d.says(result("1"))
	s.gets(result("1"))
	d.Close()
	assert.NoError(t, <-s.ended)

	s, d = greeted(t, nil) // no daemon
	s.down.Store(true)
	d.Close()
	assert.Equal(t, "warning", s.message())
	assert.NoError(t, s.end())

	s, _ = greeted(t, nil) // a daemon that does not respond
	s.sick.Store(true)
	assert.NoError(t, s.end())

	s, d = greeted(t, nil) // while the bridge repeats initialize
	d.Close()
	assert.Equal(t, "warning", s.message())
	d = s.daemon()
	d.gets(helloLine)
	assert.NoError(t, s.end())
}
