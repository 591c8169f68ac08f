package objects

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
)

const hush = "s3cret-of-the-operator"

var loopbackOnly = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// A server is a versitygw that keeps the objects of a bucket as files.
type server struct {
	dir, address string
	cmd          *exec.Cmd
}

func startServer(t *testing.T) *server {
	t.Helper()
	need.Program(t, "versitygw")
	s := &server{dir: t.TempDir()}
	for _, dir := range []string{"buckets/store", "meta", "iam"} {
		require.NoError(t, os.MkdirAll(filepath.Join(s.dir, dir), 0o700))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = l.Addr().String()
	l.Close()
	s.start(t)
	t.Cleanup(func() { s.kill() })
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command("versitygw", "--port", s.address, "--quiet", "--keep-alive", "--iam-dir", filepath.Join(s.dir, "iam"),
		"posix", "--sidecar", filepath.Join(s.dir, "meta"), filepath.Join(s.dir, "buckets"))
	s.cmd.Env = []string{"ROOT_ACCESS_KEY=operator", "ROOT_SECRET_KEY=" + hush}
	require.NoError(t, s.cmd.Start())
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// stop stops the server, and returns when each of its threads has stopped.
func (s *server) stop(t *testing.T) {
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
}

func (s *server) open(t *testing.T, change func(*Options)) *Store {
	return open(t, "http://"+s.address, change)
}

// open opens the bucket "store" of a server.
func open(t *testing.T, server string, change func(*Options)) *Store {
	t.Helper()
	u, err := url.Parse(server)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(hush), 0o600))
	o := Options{URL: u, Bucket: "store", AccessKey: "operator", SecretKey: &credential.Source{File: file}, Addresses: loopbackOnly}
	if change != nil {
		change(&o)
	}
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// client calls the tools as one agent, through the door.
type client struct {
	set    *tools.Set
	events []audit.Event
}

func newClient(t *testing.T, store *Store, id, front string) *client {
	t.Helper()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	text := "---\nname: " + id + "\ndescription: test\n" + front + "\n---\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte(text), 0o644))
	all, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	ours, err := New(store)
	require.NoError(t, err)
	c := &client{}
	c.set, err = tools.NewSet(tools.Gate{
		Agent: scope.ID(id), Session: "s", Rates: &tools.Rates{},
		Rules:  func() tools.Rules { return all.Agents[scope.ID(id)].Grants },
		Record: func(_ context.Context, e audit.Event) error { c.events = append(c.events, e); return nil },
	}, ours...)
	require.NoError(t, err)
	return c
}

type args map[string]any

// call calls a tool and decodes its result into out, unless out is nil.
func (c *client) call(t *testing.T, tool string, in args, out any) error {
	t.Helper()
	text, err := json.Marshal(in)
	require.NoError(t, err)
	r, err := c.set.Call(t.Context(), tools.Call{Tool: tool, Args: text})
	if err != nil {
		assert.NotContains(t, err.Error()+c.events[len(c.events)-1].Detail, hush)
	}
	if err == nil && out != nil {
		require.NoError(t, json.Unmarshal(r.Structured, out))
	}
	return err
}

// must calls a tool and fails the test if the call fails.
func must[T any](t *testing.T, c *client, tool string, in args) (out T) {
	t.Helper()
	require.NoError(t, c.call(t, tool, in, &out), c.events)
	return out
}

// code returns the code of an agent's error, "" for nil.
func code(err error) tools.Code {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*tools.Error](err)
	if !ok {
		return tools.Code("no tools.Error: " + err.Error())
	}
	return e.Code
}

// keys returns the keys of all pages.
func (c *client) keys(t *testing.T, path string, limit int) (all []string) {
	t.Helper()
	in := args{"path": path, "limit": limit}
	for range 1000 {
		p := must[page](t, c, "object_list", in)
		assert.LessOrEqual(t, len(p.Objects), limit)
		for _, o := range p.Objects {
			all = append(all, o.Key)
		}
		if p.NextCursor == "" {
			return all
		}
		in["cursor"] = p.NextCursor
	}
	t.Fatal("a listing does not end")
	return nil
}
