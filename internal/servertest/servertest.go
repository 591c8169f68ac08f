// Package servertest runs server programs in tests.
package servertest

import (
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Server is a server program. The test's end kills it.
type Server struct {
	command func() *exec.Cmd
	answers func() bool
	cmd     *exec.Cmd
}

// Start starts the program of command, and waits until answers reports that it
// answers. Each start runs command again.
func Start(t testing.TB, command func() *exec.Cmd, answers func() bool) *Server {
	t.Helper()
	s := &Server{command: command, answers: answers}
	s.Start(t)
	return s
}

// Start starts the program again after Kill.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.cmd = s.command()
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.Kill)
	require.Eventually(t, s.answers, 30*time.Second, 10*time.Millisecond, "%s does not answer", s.cmd.Path)
}

// Kill kills the program and waits for its end.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Stop stops the program, and returns when each of its threads has stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
}

// Continue continues the program after Stop.
func (s *Server) Continue(t testing.TB) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
}

// FreeAddress returns an address of the loopback interface with a port on which no server listened a moment ago.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// accepts reports whether a server accepts connections.
func accepts(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// Answer serves each connection to a free port of the loopback interface until the
// test ends, closes it, and returns the port's address.
func Answer(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return l.Addr().String()
}
