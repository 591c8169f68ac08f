package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

// role is the environment variable that makes the test binary a server.
const role = "UPSTREAM_TEST_ROLE"

func TestMain(m *testing.M) {
	child.Play(map[string]func() int{child.Init: pid1.Main, child.Files: nil})
	if name := os.Getenv(role); name != "" {
		os.Exit(serve(name))
	}
	for _, name := range []string{child.Init, child.Files} { // it stays open
		if _, err := child.Program(name); err != nil {
			panic(err)
		}
	}
	before := descriptors()
	code := m.Run()
	for end := time.Now().Add(20 * time.Second); descriptors() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "descriptors left: %d, there were %d\n", descriptors(), before)
			os.Exit(1)
		}
	}
	os.Exit(code)
}

type none struct{}

// serve runs a server made with the SDK, with the fault that its name says.
func serve(name string) int {
	switch name {
	case "broken":
		fmt.Fprintln(os.Stderr, "warming up\nno database at", os.Getenv("SECRET"))
		return 3
	case "silent": // never answers
		io.Copy(io.Discard, os.Stdin)
		return 0
	case "flood": // sends requests and reads nothing
		bufio.NewReader(os.Stdin).ReadString('\n')
		for i := 0; ; i++ {
			if _, err := fmt.Printf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i); err != nil {
				return 0
			}
		}
	case "modern": // supports only server/discover
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if strings.Contains(line, `"initialize"`) {
			fmt.Println(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no initialize here"}}`)
		} else if strings.Contains(line, `"server/discover"`) {
			fmt.Fprintln(os.Stderr, "asked to discover")
		}
		return 0
	case "restless": // changes its list after each tools/list
		return restless()
	case "deaf": // answers no call
		return raw()
	case "raw": // answers a call with the text of its argument, unchanged
		return raw()
	case "slow":
		time.Sleep(400 * time.Millisecond)
	case "noisy":
		fmt.Println("Welcome!\n[INFO] {ready}\n{\"level\":30,\"msg\":\"listening\"}\n17\n[]")
	}
	var opts mcp.ServerOptions
	server := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, &opts)
	addTools(server)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type unconfined struct {
	mu    sync.Mutex
	runs  []*exec.Cmd
	ended sync.WaitGroup
	gone  atomic.Int32 // exited processes
	fail  error
}

// Exec runs the command without a sandbox.
func (p *unconfined) Exec(ctx context.Context, _ string, c sandbox.Command) (*sandbox.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	for k, v := range c.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var inner, outer [3]*os.File
	for i := range inner {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if inner[i], outer[i] = w, r; i == 0 {
			inner[i], outer[i] = r, w
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inner[0], inner[1], inner[2]
	err := cmd.Start()
	for _, f := range inner {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	p.runs = append(p.runs, cmd)
	p.ended.Go(func() { cmd.Wait(); p.gone.Add(1) })
	return &sandbox.Process{Stdin: outer[0], Stdout: outer[1], Stderr: outer[2]}, nil
}

// started returns the number of processes started.
func (p *unconfined) started() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs)
}

// kill kills the latest process.
func (p *unconfined) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[len(p.runs)-1].Process.Kill()
}

// fixture is an Upstream with servers of the test binary, by role.
type fixture struct {
	*Upstream
	sandboxes *unconfined
	allowed   atomic.Pointer[map[string]Spec]
	changes   atomic.Int32
}

func (f *fixture) allow(roles ...string) {
	specs := map[string]Spec{}
	for _, r := range roles {
		specs[r] = Spec{Command: os.Args[0], Env: map[string]string{role: r, "SECRET": "hunter2hunter2"}, Cwd: "/"}
	}
	f.allowed.Store(&specs)
}

func start(t *testing.T, roles ...string) *fixture {
	t.Helper()
	f := &fixture{sandboxes: &unconfined{}}
	f.allow(roles...)
	f.Upstream = New(f.sandboxes, func() map[string]Spec { return *f.allowed.Load() })
	f.OnChange = func() { f.changes.Add(1) }
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		f.sandboxes.ended.Wait() // hangs if a process is left
	})
	return f
}

// descriptors returns the number of open descriptors; -1 where it cannot be counted.
func descriptors() int {
	if r, w, err := os.Pipe(); err == nil { // so that the runtime's poller has opened its descriptors
		r.Close()
		w.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(list)
}

// names returns the names of all tools and requires that there are no errors.
func (f *fixture) names(t *testing.T) (names []string) {
	t.Helper()
	list, errs := f.Tools(t.Context())
	require.Empty(t, errs)
	for _, tool := range list {
		names = append(names, tool.Name)
	}
	return names
}
