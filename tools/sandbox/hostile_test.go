package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// evil, in the view, makes the init of the tests one that has been taken over.
// It says how it behaves.
const evil = "evil-init"

// late is how an init behaves that reports a command when the view has the file "report".
const late = "reports late"

// evilInit is process 1 in the hands of an attacker.
func evilInit(how string) int {
	conn, err := net.FileConn(os.NewFile(pid1.ControlFD, "control"))
	if err != nil {
		return 1
	}
	in := attacker{conn.(*net.UnixConn)}
	if how == "says nothing" {
		time.Sleep(time.Hour)
	}
	in.send(pid1.Reply{Op: pid1.OpReady}, evilListeners(how)...)
	if how == "defies" { // does not die with the socket
		time.Sleep(time.Hour)
	}
	var r pid1.Request
	packet := make([]byte, 4<<10)
	n, _ := in.conn.Read(packet)
	json.Unmarshal(packet[:n], &r)
	file, _ := os.Open("/etc/passwd")
	fd := int(file.Fd())
	var ends []int // of the three pipes of a command, those for the daemon
	for i := range 3 {
		var pipe [2]int // reading, writing
		unix.Pipe(pipe[:])
		end := pipe[0]
		if i == 0 {
			end = pipe[1]
		}
		ends = append(ends, end)
	}
	started := pid1.Reply{Op: pid1.OpStarted, ID: r.ID}
	switch how {
	case late:
		words := make([]string, len(r.Argv))
		for i, word := range r.Argv {
			words[i] = string(word)
		}
		started.PID, _ = syscall.ForkExec("/bin/bash", words, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
		for {
			if _, err := os.Stat(Workspace + "/report"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		in.send(started, ends...)
	case "files for pipes":
		in.send(started, fd, fd, fd)
	case "wrong ends":
		in.send(started, ends[1], ends[0], ends[0])
	case "too few":
		in.send(started, ends[0])
	case "too many":
		in.send(started, append(ends, make([]int, 200)...)...)
	case "descriptors with an error":
		in.send(pid1.Reply{Op: pid1.OpStarted, ID: r.ID, Errno: unix.ENOENT}, ends...)
	case "unknown command":
		in.send(pid1.Reply{Op: pid1.OpStarted, ID: 77}, ends...)
	case "ends before it starts":
		in.send(pid1.Reply{Op: pid1.OpExited, ID: r.ID})
	case "stops before it starts":
		in.send(pid1.Reply{Op: pid1.OpStopped, ID: r.ID})
	case "stops with descriptors":
		in.send(started, ends...)
		in.send(pid1.Reply{Op: pid1.OpStopped, ID: r.ID}, fd)
	case "starts twice":
		in.send(started, ends...)
		in.send(started, ends...)
	case "ready twice":
		in.send(pid1.Reply{Op: pid1.OpReady})
	case "no JSON":
		in.conn.Write([]byte("{{{"))
	case "too large":
		in.conn.Write([]byte(`{"op":"` + strings.Repeat("x", 100<<10) + `"}`))
	case "files for a terminal":
		in.send(started, fd)
	}
	time.Sleep(time.Hour)
	return 0
}

// attacker writes to the daemon whatever it likes.
type attacker struct{ conn *net.UnixConn }

func (a attacker) send(r pid1.Reply, fds ...int) {
	b, _ := json.Marshal(r)
	a.conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
}

func TestHostileInit(t *testing.T) {
	need.Long(t, "it takes seconds")
	for _, how := range []string{
		"files for pipes", "wrong ends", "too few", "too many", "descriptors with an error", "unknown command",
		"ends before it starts", "stops before it starts", "stops with descriptors", "starts twice", "ready twice", "no JSON", "too large", "files for a terminal",
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
	need.Long(t, "waits for a time limit")
	s := newTestSession(t, func(spec *Spec) { misbehave(t, spec, "defies") })
	require.Eventually(t, func() bool { // it has cleared its PR_SET_PDEATHSIG and sleeps
		stat, err := proc.ReadStat(s.PID())
		return err == nil && stat.State == 'S'
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, s.bwrap.Process.Kill())
	select {
	case <-s.Done():
	case <-time.After(10 * time.Second):
		require.Fail(t, "still there")
	}
	stat, err := proc.ReadStat(s.PID())
	assert.True(t, err != nil || stat.State == 'Z')
}

func TestSilentInit(t *testing.T) {
	spec := newSpec(t)
	misbehave(t, &spec, "says nothing")
	h := newHost(t)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := h.Start(ctx, spec)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestProgramIsSealed looks for a way from a command that is FileWorker to the
// program on the host (CVE-2019-5736), and for one to its memory and streams: it
// is closed to others of its user, though it does nothing for that itself.
func TestProgramIsSealed(t *testing.T) {
	s := newTestSession(t, func(spec *Spec) {
		if !ordinary() { // the owner of the program
			dir, view := newView(t, 0)
			require.NoError(t, os.Chmod(dir, 0o700))
			spec.UID, spec.GID, spec.View = 0, 0, view
		}
	})
	p, err := s.Exec(context.Background(), Command{Argv: []string{FileWorker, "wait"}})
	require.NoError(t, err)
	defer p.Close()
	_, err = io.ReadFull(p.Stdout, make([]byte, 1))
	require.NoError(t, err)
	out := sh(t, s, `pid=$(pgrep -fx "scopefs-files wait")
		echo x >>/proc/$pid/exe; cat /proc/$pid/exe; chmod 777 /proc/$pid/exe; mount | grep -c scopefs`)
	assert.Equal(t, 3, strings.Count(out, "Permission denied"), out)
	assert.Contains(t, out, "0\n")
	_, err = s.host.files.memory.WriteAt([]byte("x"), 0) // nor could whoever had it open
	assert.ErrorIs(t, err, unix.EPERM)
	assert.ErrorIs(t, s.host.files.memory.Truncate(0), unix.EPERM)
}

// TestInitProgram opens the program of init for writing, as a process could that had init's /proc/1/exe open, and reads
// its path. Where the file has no such mount, init is executed from the sealed copy.
func TestInitProgram(t *testing.T) {
	if ordinary() && os.Geteuid() != 0 {
		need.Skip(t, "needs the right to mount")
	}
	name := filepath.Join(t.TempDir(), "program")
	text, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o755)) // nobody executes it: open(2) does not answer ETXTBSY
	program, err := initProgram(Config{Init: name})
	require.NoError(t, err)
	defer program.Close()
	_, err = os.OpenFile(procPath(program), os.O_WRONLY, 0)
	assert.ErrorIs(t, err, unix.EROFS)
	assert.ErrorIs(t, os.Chmod(procPath(program), 0o777), unix.EROFS)
	at, err := os.Readlink(procPath(program))
	require.NoError(t, err)
	assert.Equal(t, "/", at)

	require.NoError(t, os.Chmod(name, 0o700))
	copied, err := initProgram(Config{Init: name})
	require.NoError(t, err)
	defer copied.Close()
	at, err = os.Readlink(procPath(copied))
	require.NoError(t, err)
	assert.Equal(t, "/memfd:scopefs-init (deleted)", at, "the file is not for the agent's user")
	assert.ErrorIs(t, copied.Truncate(0), unix.EPERM)
}

// TestSealedAgain makes the copy after a program that could not be read, half of it first.
func TestSealedAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	s, err := newSealed(name, "test")
	require.NoError(t, err)
	defer s.Close()
	_, err = s.file()
	assert.ErrorIs(t, err, os.ErrNotExist)
	text, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text[:len(text)/2], 0o755))
	_, err = s.file()
	assert.Error(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o755))
	f, err := s.file()
	require.NoError(t, err)
	assert.ErrorIs(t, f.Truncate(0), unix.EPERM)
	copied := make([]byte, len(text)/2)
	_, err = f.ReadAt(copied, 0)
	require.NoError(t, err)
	assert.Equal(t, text[:len(copied)], copied)
}

// wait says that it runs, and waits.
func wait([]string) int {
	fmt.Println("r")
	time.Sleep(time.Minute)
	return 0
}
