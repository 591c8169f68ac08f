package receivers

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

func event(t *testing.T, text string) audit.Event {
	e := audit.Event{Raw: []byte(text)}
	require.NoError(t, json.Unmarshal(e.Raw, &e))
	return e
}

// TestSyslogMessage: a message is that of RFC 5424, whatever the log has.
func TestSyslogMessage(t *testing.T) {
	s := Syslog{Host: "höst name"}
	text := `{"seq":7,"time":"2026-11-26T08:00:00.1234567Z","event":"file","agent":"a","op":"open\"]x","verdict":"violation"}`
	assert.Equal(t, `<107>1 2026-11-26T08:00:00.123456Z h_st_name scopefs - file [scopefs@32473 seq="7" agent="a" op="open\"\]x" verdict="violation"] `+text,
		string(s.message(event(t, text))))
	text = `{"seq":8,"time":"2026-11-26T08:00:00Z","event":"audit","detail":"ä"}`
	assert.Equal(t, `<108>1 2026-11-26T08:00:00.000000Z - scopefs - audit [scopefs@32473 seq="8"] `+"\xef\xbb\xbf"+text, string((&Syslog{}).message(event(t, text))))
	head := audit.Event{Time: time.Unix(0, 0), Event: "head", Raw: []byte("checkpoint=YQ==")}
	assert.Equal(t, "<110>1 1970-01-01T00:00:00.000000Z h scopefs - head [scopefs@32473] checkpoint=YQ==", string((&Syslog{Host: "h"}).message(head)))
	assert.Equal(t, "x", word(strings.Repeat("x", 300), 255)[:1])
	assert.Len(t, word(strings.Repeat("x", 300), 255), 255)
}

// TestSyslogUnread: what the receiver's kernel has and the receiver has not read is not sent.
func TestSyslogUnread(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"a dead receiver":                 func(c net.Conn) { c.Close() },
		"a receiver that has read a part": func(c net.Conn) { _, _ = c.Read(make([]byte, 10)); c.Close() },
		"a receiver that hangs":           func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			sent := make(chan struct{})
			ended, returned := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				<-sent
				end(conn)
				<-returned
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			s := &Syslog{Dial: func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", l.Addr().String())
			}}
			time.AfterFunc(300*time.Millisecond, func() { close(sent) }) // by then the receiver's kernel has it
			err = s.Send(ctx, []audit.Event{event(t, `{"seq":7,"time":"2026-11-26T08:00:00Z","event":"file"}`)})
			close(returned)
			assert.Error(t, err)
			<-ended
		})
	}
}

// TestSyslogDatagrams: a receiver that is gone is an error, and the next call connects again.
func TestSyslogDatagrams(t *testing.T) {
	name := t.TempDir() + "/log"
	listen := func() *net.UnixConn {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		require.NoError(t, err)
		return l
	}
	s := &Syslog{Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unixgram", name)
	}}
	defer s.Close()
	e := []audit.Event{event(t, `{"seq":7,"time":"2026-11-26T08:00:00Z","event":"file"}`)}
	for range 2 {
		l := listen()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if s.Send(ctx, e) != nil { // the first one after a receiver has gone
			require.NoError(t, s.Send(ctx, e))
		}
		cancel()
		b := make([]byte, 1000)
		n, err := l.Read(b)
		require.NoError(t, err)
		assert.Contains(t, string(b[:n]), `seq="7"`)
		l.Close()
		require.NoError(t, os.Remove(name))
	}
	assert.Error(t, s.Send(t.Context(), e))
}
