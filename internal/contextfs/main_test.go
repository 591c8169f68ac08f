package contextfs_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// roles are what this binary does inside the sandbox.
var roles = map[string]func(args []string) error{"hold": hold, "steal": steal, "flood": flood}

func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: pid1.Main, child.Files: nil})
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			os.Stdout.WriteString("failed: " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

// program is the process's program, which is static, as tests with the race detector are not.
var program = os.Getenv(programEnv)

func run(m *testing.M) int {
	if program == "" {
		dir, err := os.MkdirTemp("", "scopefs-test-context")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "server")
		build := exec.Command("go", "build", "-o", program, "github.com/scopefs/scopefs/cmd/scopefs-context")
		build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
		if err := errors.Join(os.Chmod(dir, 0o755), build.Run()); err != nil { // the agent's user executes it
			panic(err)
		}
	}
	return m.Run()
}

// programEnv has the program of a run of this binary by itself.
const programEnv = "CONTEXTFS_TEST_PROGRAM"

// ordinaryEnv marks a run of this binary as root of a user namespace.
const ordinaryEnv = "CONTEXTFS_TEST_ORDINARY"

// agentUID is the agent's user where the host's root runs the tests.
const agentUID = 1000

// box is a sandbox with the files of calls.
type box struct {
	t       *testing.T
	session *sandbox.Session
	mount   *contextfs.Mount

	running atomic.Pointer[sandbox.Session]
	mu      sync.Mutex
	calls   map[string]*contextfs.Files
	stall   chan struct{} // Owner waits for it; nil: no wait

	asked atomic.Int64 // calls of Owner
	died  chan error   // of Options.Died
}

func newBox(t *testing.T) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Skip(t, "needs root or a user namespace: it mounts")
	}
	b := &box{t: t, calls: map[string]*contextfs.Files{}, died: make(chan error, 1)}
	uid := uint32(agentUID)
	if os.Getenv(ordinaryEnv) != "" {
		uid = 0
	}
	control := fusemount.OpenControl()
	t.Cleanup(control.Close)
	t.Cleanup(func() { // after the sandbox has ended
		if b.mount != nil {
			b.mount.Close()
		}
	})
	host, err := sandbox.Open(sandbox.Config{})
	if err != nil {
		need.Skip(t, "no sandbox here: ", err)
	}
	t.Cleanup(func() { assert.NoError(t, host.Close()) })
	b.mount, err = contextfs.Open(contextfs.Options{
		UID: uid, GID: uid, Root: uid != 0, Program: program, Control: control, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Refused: func(uint32) {}, Ready: func(int) {}, Died: func(_ *sandbox.Session, why error) { b.died <- why },
	})
	require.NoError(t, err)
	b.session, err = host.Start(context.Background(), sandbox.Spec{Agent: "tester", UID: uid, GID: uid, Context: b.mount.Root})
	require.NoError(t, err)
	b.running.Store(b.session)
	b.mount.Answer(b.owner)
	require.NoError(t, b.mount.Root.Close())
	return b
}

func (b *box) owner(tid uint32) *contextfs.Files {
	b.asked.Add(1)
	b.mu.Lock()
	stall := b.stall
	b.mu.Unlock()
	if stall != nil {
		<-stall
	}
	s := b.running.Load()
	if s == nil {
		return nil
	}
	tag, _, _ := s.TagOf(int(tid))
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[tag]
}

// show makes the files of a call visible, and hides them again.
func (b *box) show(call string, content map[string]string) (hide func()) {
	b.t.Helper()
	bytes := map[string][]byte{}
	for name, text := range content {
		bytes[name] = []byte(text)
	}
	f, err := contextfs.New(call, bytes)
	require.NoError(b.t, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[call] = f
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.calls, call)
		f.End()
	}
}

// start starts a command of a call.
func (b *box) start(call string, argv ...string) *sandbox.Process {
	b.t.Helper()
	p, err := b.session.Exec(context.Background(), sandbox.Command{Argv: argv, Tag: call})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { p.Close() })
	require.NoError(b.t, p.Stdout.SetReadDeadline(time.Now().Add(30*time.Second)))
	return p
}

// run runs a command of a call, and returns its output.
func (b *box) run(call string, argv ...string) string {
	b.t.Helper()
	p := b.start(call, argv...)
	defer p.Close()
	p.Stdin.Close()
	errs := make(chan []byte, 1)
	go func() {
		text, _ := io.ReadAll(p.Stderr)
		errs <- text
	}()
	out, err := io.ReadAll(p.Stdout)
	require.NoError(b.t, err)
	_, err = p.Wait()
	require.NoError(b.t, err)
	return string(out) + string(<-errs)
}
