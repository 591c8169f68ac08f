package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// evil, in the view, makes the init of the tests one that has been taken over.
// It says how it behaves.
const evil = "evil-init"

// evilInit is process 1 in the hands of an attacker.
func evilInit(how string) int {
	in, err := newInit()
	if err != nil {
		return 1
	}
	if how == "says nothing" {
		time.Sleep(time.Hour)
	}
	in.wire.send(reply{Op: opReady})
	if how == "defies" { // does not die with bwrap, nor with the socket
		unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
		time.Sleep(time.Hour)
	}
	var r request
	in.wire.receive(&r)
	file, _ := os.Open("/etc/passwd")
	fd := int(file.Fd())
	e, _ := newEnds(nil)
	started := reply{Op: opStarted, ID: r.ID}
	switch how {
	case "files for pipes":
		in.wire.send(started, fd, fd, fd)
	case "wrong ends":
		in.wire.send(started, e.outer[1], e.outer[0], e.outer[0])
	case "too few":
		in.wire.send(started, e.outer[0])
	case "too many":
		in.wire.send(started, append(e.outer, make([]int, 200)...)...)
	case "descriptors with an error":
		in.wire.send(reply{Op: opStarted, ID: r.ID, Errno: unix.ENOENT}, e.outer...)
	case "unknown command":
		in.wire.send(reply{Op: opStarted, ID: 77}, e.outer...)
	case "ends before it starts":
		in.wire.send(reply{Op: opExited, ID: r.ID})
	case "starts twice":
		in.wire.send(started, e.outer...)
		in.wire.send(started, e.outer...)
	case "ready twice":
		in.wire.send(reply{Op: opReady})
	case "no JSON":
		in.wire.conn.Write([]byte("{{{"))
	case "too large":
		in.wire.conn.Write([]byte(`{"op":"` + strings.Repeat("x", 100<<10) + `"}`))
	case "files for a terminal":
		in.wire.send(started, fd)
	}
	time.Sleep(time.Hour)
	return 0
}

func TestHostileInit(t *testing.T) {
	for _, how := range []string{
		"files for pipes", "wrong ends", "too few", "too many", "descriptors with an error", "unknown command",
		"ends before it starts", "starts twice", "ready twice", "no JSON", "too large", "files for a terminal",
	} {
		t.Run(how, func(t *testing.T) {
			s := newTestSession(t, func(spec *Spec) { misbehave(t, spec, how) })
			c := Command{Argv: []string{"true"}}
			if how == "files for a terminal" {
				c.TTY = &Size{Rows: 1, Cols: 1}
			}
			p, err := s.Exec(context.Background(), c)
			if err == nil { // it did start, once
				_, err = p.Wait()
				p.Close()
			}
			assert.ErrorIs(t, err, ErrEnded)
			<-s.Done()
			assert.Error(t, s.Err())
		})
	}
}

func misbehave(t *testing.T, spec *Spec, how string) {
	require.NoError(t, os.WriteFile(filepath.Join(spec.View.Name(), evil), []byte(how), 0o644))
}

// TestInitThatDefies has an init that nothing but SIGKILL ends, with bwrap gone.
func TestInitThatDefies(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) { misbehave(t, spec, "defies") })
	require.Eventually(t, func() bool { // it has cleared its PR_SET_PDEATHSIG and sleeps
		stat, err := readStat(s.PID())
		return err == nil && stat.state == 'S'
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, s.bwrap.Process.Kill())
	select {
	case <-s.Done():
	case <-time.After(10 * time.Second):
		require.Fail(t, "still there")
	}
	stat, err := readStat(s.PID())
	assert.True(t, err != nil || stat.state == 'Z')
}

func TestSilentInit(t *testing.T) {
	_, view := newView(t, agentUID)
	spec := Spec{Agent: "tester", UID: agentUID, GID: agentUID, View: view}
	misbehave(t, &spec, "says nothing")
	h := newHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := h.Start(ctx, spec)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestProgramIsSealed looks for a way from a command that is Self to the
// program on the host (CVE-2019-5736), and for one to its memory and streams: it
// is closed to others of its user, though it does nothing for that itself.
func TestProgramIsSealed(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) {
		if os.Geteuid() == 0 { // the owner of the program
			dir, view := newView(t, 0)
			require.NoError(t, os.Chmod(dir, 0o700))
			spec.UID, spec.GID, spec.View = 0, 0, view
		}
	})
	p, err := s.Exec(context.Background(), Command{Argv: []string{Self, "wait"}})
	require.NoError(t, err)
	defer p.Close()
	_, err = io.ReadFull(p.Stdout, make([]byte, 1))
	require.NoError(t, err)
	out := sh(t, s, `pid=$(pgrep -fx "scopefs wait")
		echo x >>/proc/$pid/exe; cat /proc/$pid/exe; chmod 777 /proc/$pid/exe; mount | grep -c scopefs`)
	assert.Equal(t, 3, strings.Count(out, "Permission denied"), out)
	assert.Contains(t, out, "0\n")
	_, err = s.host.program.WriteAt([]byte("x"), 0) // nor could whoever had it open
	assert.ErrorIs(t, err, unix.EPERM)
	assert.ErrorIs(t, s.host.program.Truncate(0), unix.EPERM)
}

// wait says that it runs, and waits.
func wait([]string) int {
	fmt.Println("r")
	time.Sleep(time.Minute)
	return 0
}
