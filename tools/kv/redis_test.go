package kv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

// docs/stores.md tells the operator to make this user.
const (
	testUser     = "scopefs"
	testPassword = "s3cret-word"
	testRights   = "~* -@all +ping +watch +unwatch +multi +exec +time +del +pexpireat +hset +hget +hmget +hdel +hstrlen +hvals +zadd +zrem +zcard +zrange +zrangebyscore +zrangebylex"
)

// server is a redis-server on a socket.
type server struct {
	dir string
	cmd *exec.Cmd
}

func startServer(t *testing.T) *server {
	t.Helper()
	need.Program(t, "redis-server")
	dir, err := os.MkdirTemp("", "kv") // a socket's path is short
	require.NoError(t, err)
	s := &server{dir: dir}
	t.Cleanup(func() {
		s.kill()
		os.RemoveAll(dir)
	})
	s.start(t)
	return s
}

func (s *server) socket() string { return filepath.Join(s.dir, "s") }

func (s *server) start(t *testing.T) {
	t.Helper()
	config := filepath.Join(s.dir, "conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "port 0\nunixsocket %s\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\nuser default off ~* &* +@all\nuser %s on >%s %s\nuser admin on nopass ~* +@all\n",
		s.socket(), s.dir, testUser, testPassword, testRights), 0o600))
	s.cmd = exec.Command("redis-server", config)
	require.NoError(t, s.cmd.Start())
	admin := s.admin(t)
	require.Eventually(t, func() bool { return admin.Ping(t.Context()).Err() == nil }, 20*time.Second, 10*time.Millisecond)
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

func (s *server) signal(t *testing.T, signal syscall.Signal) {
	require.NoError(t, s.cmd.Process.Signal(signal))
}

// admin is a client that may do everything.
func (s *server) admin(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), Username: "admin", Password: "x", Protocol: 2, DialerRetries: 1})
	t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) open(t *testing.T, limits Limits) *Redis { return openAt(t, s.socket(), limits) }

func openAt(t *testing.T, address string, limits Limits) *Redis {
	r, err := OpenRedis(RedisOptions{Address: address, Username: testUser, Password: func(context.Context) (string, error) { return testPassword, nil }}, limits)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// cause returns what the log has of an error.
func cause(err error) string {
	if c := errors.Unwrap(err); c != nil {
		return c.Error()
	}
	return ""
}

// TestRedisServer: a server that is down, stopped, killed or started again makes
// calls unavailable in bounded time, and nothing that was set is lost.
func TestRedisServer(t *testing.T) {
	s := startServer(t)
	a := newClient(t, s.open(t, Limits{}), "a", "")
	unavailable := func(tool string, in args) {
		t.Helper()
		began := time.Now()
		err := a.call(t, tool, in, nil)
		assert.Equal(t, tools.Unavailable, code(err), "%v", err)
		assert.NotEmpty(t, err.(*tools.Error).Hint)
		assert.Less(t, time.Since(began), patience+5*time.Second)
	}
	first := must[set](t, a, "kv_set", args{"key": "k", "value": "v"})

	s.signal(t, syscall.SIGSTOP)
	unavailable("kv_set", args{"key": "k", "value": "w"})
	unavailable("kv_get", args{"key": "k"})
	s.signal(t, syscall.SIGCONT)
	assert.Eventually(t, func() bool { return a.call(t, "kv_get", args{"key": "k"}, nil) == nil }, 10*time.Second, 20*time.Millisecond)

	// Killed during a call, the server does not answer that call; then it is down.
	done := make(chan error)
	s.signal(t, syscall.SIGSTOP)
	go func() { done <- a.call(t, "kv_list", args{}, nil) }()
	s.kill()
	assert.Equal(t, tools.Unavailable, code(<-done))
	unavailable("kv_delete", args{"key": "k"})
	unavailable("kv_list", args{})

	s.start(t)
	now := must[got](t, a, "kv_get", args{"key": "k"})
	assert.GreaterOrEqual(t, now.Version, first.Version)
	again := must[set](t, a, "kv_set", args{"key": "k", "value": "x", "if_version": now.Version})
	assert.Greater(t, again.Version, now.Version)

	// A connection that the server closed is not used for the next call.
	s.kill()
	s.start(t)
	must[set](t, a, "kv_set", args{"key": "k", "value": "y", "if_version": again.Version})

	// Its data is lost: no version comes back.
	last := must[got](t, a, "kv_get", args{"key": "k"}).Version
	require.NoError(t, s.admin(t).FlushAll(t.Context()).Err())
	assert.Greater(t, must[set](t, a, "kv_set", args{"key": "k", "value": "z", "if_version": 0}).Version, last)
}

// TestRedisFull: a server without memory takes no changes, and answers reads.
func TestRedisFull(t *testing.T) {
	s := startServer(t)
	a := newClient(t, s.open(t, Limits{}), "a", "")
	must[set](t, a, "kv_set", args{"key": "k", "value": "v"})
	require.NoError(t, s.admin(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	err := a.call(t, "kv_set", args{"key": "k", "value": "w"}, nil)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, err.(*tools.Error).Hint, "full", cause(err))
	assert.Equal(t, "v", must[got](t, a, "kv_get", args{"key": "k"}).Value)
	assert.True(t, must[deleted](t, a, "kv_delete", args{"key": "k"}).Deleted)
	require.NoError(t, s.admin(t).ConfigSet(t.Context(), "maxmemory", "0").Err())
	must[set](t, a, "kv_set", args{"key": "k", "value": "w"})
}

// TestRedisPoisoned: what another program wrote into an agent's part gives the
// agent nothing of its neighbour's, and changes nothing there.
func TestRedisPoisoned(t *testing.T) {
	s := startServer(t)
	store, admin, ctx := s.open(t, Limits{}), s.admin(t), t.Context()
	a, b := newClient(t, store, "a", ""), newClient(t, store, "b", "")
	must[set](t, b, "kv_set", args{"key": "secret", "value": "of b"})
	for name, poison := range map[string]func() error{
		"index":   func() error { return admin.ZAdd(ctx, "a:", redis.Z{Member: "a:\xfe"}, redis.Z{Member: "a:x"}).Err() },
		"expiry":  func() error { return admin.ZAdd(ctx, "a:%t", redis.Z{Score: 1, Member: "b:secret"}).Err() },
		"version": func() error { return admin.HSet(ctx, "a:x", "n", "one", "x", "0", "v", "").Err() },
		"type":    func() error { return admin.Set(ctx, "a:x", "v", 0).Err() },
		"sizes":   func() error { return admin.HSet(ctx, "a:%s", "", "many").Err() },
		"whole":   func() error { return admin.Set(ctx, "a:%s", "v", 0).Err() },
	} {
		require.NoError(t, poison(), name)
		failed := 0
		for tool, in := range map[string]args{"kv_get": {"key": "x"}, "kv_set": {"key": "x", "value": "v"}, "kv_list": {}} {
			err := a.call(t, tool, in, nil)
			if c := code(err); c == tools.Unavailable {
				failed++
			} else if c != "" && c != tools.NotFound {
				t.Errorf("%s: %s: %v", name, tool, err)
			}
			assert.NotContains(t, fmt.Sprint(err), "b:secret")
		}
		if name != "index" {
			assert.Positive(t, failed, name)
		}
		assert.Equal(t, "of b", must[got](t, b, "kv_get", args{"key": "secret"}).Value, name)
		require.NoError(t, admin.Del(ctx, "a:", "a:x", "a:%t", "a:%s").Err())
	}
}

// TestRedisNonsense: a server that speaks something else, says more than was
// asked for, or repeats the password makes calls unavailable: nothing crashes,
// nothing waits, and no error holds the password.
func TestRedisNonsense(t *testing.T) {
	for name, reply := range map[string]string{
		"HTTP":           "HTTP/1.1 400 Bad Request\r\n\r\n",
		"nothing":        "",
		"huge string":    "$1099511627776\r\n",
		"largest string": "$9223372036854775807\r\n",
		"negative":       "$-2\r\n",
		"huge array":     "*1099511627776\r\n",
		"deep array":     strings.Repeat("*1\r\n", 1<<20),
		"long line":      "+" + strings.Repeat("x", 1<<20) + "\r\n",
		"much":           strings.Repeat("*10000\r\n"+strings.Repeat("$-1\r\n", 10000), 400),
		"RESP3":          "%1\r\n+a\r\n+b\r\n",
		"wrong types":    strings.Repeat("*3\r\n:1\r\n*0\r\n+x\r\n", 100),
		"all OK":         strings.Repeat("+OK\r\n", 100),
		"echo":           "echo",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go serveNonsense(conn, reply)
				}
			}()
			a := newClient(t, openAt(t, l.Addr().String(), Limits{}), "a", "")
			for tool, in := range map[string]args{"kv_get": {"key": "k"}, "kv_set": {"key": "k", "value": "v"}, "kv_list": {}} {
				if name == "nothing" && tool != "kv_get" { // each takes seconds
					continue
				}
				err := a.call(t, tool, in, nil)
				assert.Equal(t, tools.Unavailable, code(err), "%s: %v", tool, err)
				assert.NotContains(t, fmt.Sprint(err, cause(err)), testPassword)
				if name == "echo" {
					assert.Contains(t, cause(err), "[redacted]")
				}
			}
		})
	}
}

// serveNonsense answers each piece that it reads.
func serveNonsense(conn net.Conn, reply string) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for buf := make([]byte, 64<<10); ; {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		text := reply
		if reply == "echo" {
			text = strings.Repeat("-ERR unknown command, with args beginning with: "+strings.ReplaceAll(string(buf[:n]), "\r\n", " ")+"\r\n", 10)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			return
		}
	}
}

// TestRedisUser: a wrong password is the operator's to repair, and in no error.
func TestRedisUser(t *testing.T) {
	s := startServer(t)
	const wrong = "wr0ng-word"
	r, err := OpenRedis(RedisOptions{Address: s.socket(), Username: testUser, Password: func(context.Context) (string, error) { return wrong, nil }}, Limits{})
	require.NoError(t, err)
	defer r.Close()
	err = r.Ping(t.Context())
	require.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, err.(*tools.Error).Hint, "password")
	assert.NotContains(t, fmt.Sprint(err, cause(err)), wrong)

	for _, address := range []string{"", "localhost", "kv.sock", "redis://h:1/"} {
		_, err := OpenRedis(RedisOptions{Address: address}, Limits{})
		assert.ErrorContains(t, err, "host:port", address)
	}
}
