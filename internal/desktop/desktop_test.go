package desktop

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// bus starts a session bus.
func bus(t *testing.T) (address string) {
	need.Program(t, "dbus-daemon")
	// One of the user alone, as a session has it.
	config := filepath.Join(t.TempDir(), "bus.conf")
	require.NoError(t, os.WriteFile(config, []byte(`<busconfig><type>session</type><listen>unix:dir=`+t.TempDir()+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`), 0o600))
	cmd := exec.Command("dbus-daemon", "--nofork", "--print-address", "--config-file="+config)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	address, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(address)
}

// desktop serves notifications on a bus: it answers each with an id, and passes the bodies of the calls on.
func desktop(t *testing.T, address string, id uint32) <-chan string {
	path, err := socket(address)
	require.NoError(t, err)
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	in := bufio.NewReader(conn)
	require.NoError(t, authenticate(conn, in))
	var name message
	name.text("org.freedesktop.Notifications")
	name.number(0)
	_, err = conn.Write(append(call(1, "org.freedesktop.DBus", "/org/freedesktop/DBus", "Hello", "", nil),
		call(2, "org.freedesktop.DBus", "/org/freedesktop/DBus", "RequestName", "su", name)...))
	require.NoError(t, err)
	for to := uint32(0); to != 2; {
		var failed bool
		to, _, failed, err = read(in)
		require.NoError(t, err)
		require.False(t, failed)
	}
	bodies := make(chan string, 8)
	go func() {
		for {
			head := make([]byte, 16)
			if _, err := io.ReadFull(in, head); err != nil {
				return
			}
			fields := (binary.LittleEndian.Uint32(head[12:]) + 7) &^ 7
			rest := make([]byte, fields+binary.LittleEndian.Uint32(head[4:]))
			if _, err := io.ReadFull(in, rest); err != nil {
				return
			}
			if head[1] != 1 || !strings.Contains(string(rest[:fields]), "Notify") {
				continue
			}
			bodies <- string(rest[fields:])
			_, sender, _ := strings.Cut(string(rest[:fields]), "\x07\x01s\x00")
			sender = sender[4 : 4+int(sender[0])]
			answer := message{'l', 2, 0, 1}
			answer.number(4)
			answer.number(9)
			to := message{6, 1, 's', 0}
			to.text(sender)
			to.align(8)
			to = append(to, 8, 1, 'g', 0, 1, 'u', 0)
			to.align(8)
			to = append(to, 5, 1, 'u', 0)
			to.number(binary.LittleEndian.Uint32(head[8:]))
			answer.number(uint32(len(to)))
			answer = append(answer, to...)
			answer.align(8)
			answer.number(id)
			_, _ = conn.Write(answer)
		}
	}()
	return bodies
}

// TestNotify: a real bus takes the messages, and the desktop gets the text.
func TestNotify(t *testing.T) {
	address := bus(t)
	_, err := Notify(t.Context(), address, 0, "summary", "body")
	assert.EqualError(t, err, "session bus: no desktop shows notifications")
	shown := desktop(t, address, 77)
	id, err := Notify(t.Context(), address, 5, "summary", "body")
	require.NoError(t, err)
	assert.EqualValues(t, 77, id)
	body := <-shown
	var want message
	want.text("scopefs")
	want.number(5)
	for _, s := range []string{"", "summary", "body"} {
		want.text(s)
	}
	assert.True(t, strings.HasPrefix(body, string(want)), "%q", body)
}

// TestNotifyWaits: a bus that does not answer, or talks nonsense, is an error soon.
func TestNotifyWaits(t *testing.T) {
	for name, says := range map[string]string{"nothing": "", "a refusal": "REJECTED\r\n", "nonsense": "DATA\r\nOK x\r\n" + strings.Repeat("\xff", 100), "no line": strings.Repeat("x", 4096)} {
		path := filepath.Join(t.TempDir(), "bus")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.WriteString(conn, says)
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err = Notify(ctx, "unix:path="+path, 0, "s", "b")
		cancel()
		assert.Error(t, err, name)
	}
}

func TestSocket(t *testing.T) {
	for address, want := range map[string]string{
		"unix:path=/run/user/1000/bus": "/run/user/1000/bus", "unix:path=/a%20b,guid=1": "/a b", "tcp:host=x;unix:abstract=/tmp/x,guid=2": "@/tmp/x", "tcp:host=x": "", "": "", "unix:path=%zz": "",
	} {
		got, err := socket(address)
		assert.Equal(t, want, got)
		assert.Equal(t, want == "", err != nil, address)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(string(call(1, "a.b", "/x", "M", "u", message{1, 0, 0, 0})))
	f.Fuzz(func(t *testing.T, text string) {
		_, _, _, _ = read(strings.NewReader(text))
		_ = replyTo([]byte(text))
	})
}
