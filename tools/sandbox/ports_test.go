package sandbox

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/tools/sandbox/ports"
)

func init() {
	helpers[ports.Arg] = func([]string) int { return ports.Main() }
	helpers["lie"], helpers["echo"] = lie, echoing
}

// TestPorts: the daemon gets connections to listeners of the sandbox, by 127.0.0.1 or ::1, and listening sockets there. The process that
// makes them keeps none of them, and another one follows when it is killed.
func TestPorts(t *testing.T) {
	s := newTestSession(t, proxied)
	p := s.Ports()
	defer p.Close()
	ctx := t.Context()
	_, err := p.Connect(ctx, 3000)
	assert.ErrorIs(t, err, unix.ECONNREFUSED)
	for _, at := range []string{"127.0.0.1", "::1"} {
		server, err := s.Exec(ctx, Command{Argv: []string{FileWorker, "echo", at}})
		require.NoError(t, err)
		_, err = io.ReadFull(server.Stdout, make([]byte, 1)) // it listens
		require.NoError(t, err)
		c, err := p.Connect(ctx, 3000)
		require.NoError(t, err)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.WriteString(c, "text")
		require.NoError(t, err)
		text := make([]byte, 4)
		_, err = io.ReadFull(c, text)
		require.NoError(t, err)
		assert.Equal(t, "text", string(text), at)
		c.Close()
		require.NoError(t, server.Close())
		_, _ = server.Wait()
	}
	l, err := p.Listen(ctx, 15432)
	require.NoError(t, err)
	go sayName(l, "host")
	assert.Equal(t, "host\n", sh(t, s, "exec 3<>/dev/tcp/127.0.0.1/15432; cat <&3"))
	_, err = p.Listen(ctx, 15432)
	assert.ErrorIs(t, err, unix.EADDRINUSE)
	sh(t, s, "kill -9 -1")
	assert.Equal(t, "host\n", sh(t, s, "exec 3<>/dev/tcp/127.0.0.1/15432; cat <&3"), "no process of the sandbox has it")
	again, err := p.Listen(ctx, 15433)
	require.NoError(t, err, "another process")
	again.Close()
	l.Close()
	assert.Contains(t, sh(t, s, "exec 3<>/dev/tcp/127.0.0.1/15432"), "refused")
	p.Close()
	_, err = p.Listen(ctx, 15434)
	assert.ErrorIs(t, err, ErrEnded)
}

// lie answers requests for sockets with what an attacker could send.
func lie(args []string) int {
	wire, err := packets.Open(0, ports.MaxMessage)
	if err != nil {
		return 1
	}
	var r ports.Request
	if _, err := wire.Receive(&r); err != nil {
		return 1
	}
	pair, _ := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	listens, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	_ = unix.Bind(listens, &unix.SockaddrInet4{Port: 4000, Addr: [4]byte{127, 0, 0, 1}})
	_ = unix.Listen(listens, 1)
	other, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	_ = unix.Connect(other, &unix.SockaddrInet4{Port: 4000, Addr: [4]byte{127, 0, 0, 1}})
	file, _ := os.Open("/dev/zero")
	switch args[0] {
	case "another id":
		_ = wire.Send(ports.Reply{ID: r.ID + 1}, other)
	case "nothing":
		_ = wire.Send(ports.Reply{ID: r.ID})
	case "an error with a socket":
		_ = wire.Send(ports.Reply{ID: r.ID, Errno: unix.EIO}, other)
	case "two":
		_ = wire.Send(ports.Reply{ID: r.ID}, other, listens)
	case "a unix socket":
		_ = wire.Send(ports.Reply{ID: r.ID}, pair[0])
	case "a listener":
		_ = wire.Send(ports.Reply{ID: r.ID}, listens)
	case "another port":
		_ = wire.Send(ports.Reply{ID: r.ID}, other)
	case "a file":
		_ = wire.Send(ports.Reply{ID: r.ID}, int(file.Fd()))
	case "text":
		_ = wire.Send(strings.Repeat("x", 100))
	case "much":
		_ = wire.Send(strings.Repeat("x", 2*ports.MaxMessage))
	}
	time.Sleep(time.Minute)
	return 0
}

// TestHostilePorts: what the process sends beside the socket that was asked for is an error, and nothing of it stays open.
func TestHostilePorts(t *testing.T) {
	s := newTestSession(t, proxied)
	for _, how := range []string{"another id", "nothing", "an error with a socket", "two", "a unix socket",
		"a listener", "another port", "a file", "text", "much"} {
		before := openFiles(t)
		p := s.Ports()
		p.program = []string{FileWorker, "lie", how}
		c, err := p.Connect(t.Context(), 3000)
		assert.Error(t, err, how)
		assert.Nil(t, c, how)
		p.Close()
		require.Eventually(t, func() bool { return openFiles(t) <= before }, time.Minute, 10*time.Millisecond, how)
	}
}

// echoing listens at port 3000 of an address, says so, and sends one client what it gets.
func echoing(args []string) int {
	l, err := net.Listen("tcp", net.JoinHostPort(args[0], "3000"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(".")
	c, err := l.Accept()
	if err == nil {
		_, _ = io.Copy(c, c)
	}
	time.Sleep(time.Minute)
	return 0
}

func openFiles(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(names)
}
