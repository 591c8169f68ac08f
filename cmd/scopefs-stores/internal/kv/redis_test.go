package kv

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/kv"
)

// docs/stores.md tells the operator to make this user.
const (
	testUser     = "scopefs"
	testPassword = "s3cret-word"
	testRights   = "~* -@all +ping +watch +unwatch +multi +exec +time +get +del +pexpireat +hset +hget +hmget +hdel +hstrlen +hvals +zadd +zrem +zcard +zrange +zrangebyscore +zrangebylex"
)

// server is a redis-server on a socket.
type server struct {
	*servertest.Server
	dir string
}

func startServer(t *testing.T) *server {
	t.Helper()
	program := need.Program(t, "redis-server")
	dir, err := os.MkdirTemp("", "kv") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{dir: dir}
	config := filepath.Join(dir, "conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "port 0\nunixsocket %s\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\nuser default off ~* &* +@all\nuser %s on >%s %s\nuser admin on nopass ~* +@all\n",
		s.socket(), dir, testUser, testPassword, testRights), 0o600))
	admin := s.admin(t)
	s.Server = servertest.Start(t, func() *exec.Cmd { return exec.Command(program, config) },
		func() bool { return admin.Ping(t.Context()).Err() == nil })
	return s
}

func (s *server) socket() string { return filepath.Join(s.dir, "s") }

// admin is a client that may do everything.
func (s *server) admin(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), Username: "admin", Password: "x", Protocol: 2, DialerRetries: 1})
	t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) open(t *testing.T, limits Limits) *Redis { return openAt(t, s.socket(), limits) }

// reach lets a driver reach what it wants, with a password.
func reach(password string) driver.Reach {
	secret := func(context.Context) (credential.Secret, error) { return credential.Known(password), nil }
	return driver.Reach{Dial: (&net.Dialer{}).DialContext, Secret: secret}
}

func openAt(t *testing.T, address string, limits Limits) *Redis {
	r, err := OpenRedis(RedisOptions{Address: address, Username: testUser, Reach: reach(testPassword)}, limits)
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
	need.Long(t, "waits for time limits")
	t.Parallel()
	s := startServer(t)
	a := newClient(t, s.open(t, Limits{}), "a", "")
	unavailable := func(tool string, in args) {
		t.Helper()
		began := time.Now()
		err := a.call(t, tool, in, nil)
		assert.Equal(t, tools.Unavailable, code(err), "%v", err)
		assert.NotEmpty(t, err.(*tools.Error).Hint)
		assert.Less(t, time.Since(began), door.Patience+5*time.Second)
	}
	first := must[set](t, a, "kv_set", args{"key": "k", "value": "v"})

	s.Stop(t)
	unavailable("kv_set", args{"key": "k", "value": "w"})
	unavailable("kv_get", args{"key": "k"})
	s.Continue(t)
	assert.Eventually(t, func() bool { return a.call(t, "kv_get", args{"key": "k"}, nil) == nil }, 10*time.Second, 20*time.Millisecond)

	// Killed during a call, the server does not answer that call; then it is down.
	done := make(chan error)
	s.Stop(t)
	go func() { done <- a.call(t, "kv_list", args{}, nil) }()
	s.Kill()
	assert.Equal(t, tools.Unavailable, code(<-done))
	unavailable("kv_delete", args{"key": "k"})
	unavailable("kv_list", args{})

	s.Start(t)
	now := must[got](t, a, "kv_get", args{"key": "k"})
	assert.GreaterOrEqual(t, now.Version, first.Version)
	again := must[set](t, a, "kv_set", args{"key": "k", "value": "x", "if_version": now.Version})
	assert.Greater(t, again.Version, now.Version)

	// A connection that the server closed is not used for the next call.
	s.Kill()
	s.Start(t)
	must[set](t, a, "kv_set", args{"key": "k", "value": "y", "if_version": again.Version})

	// Its data is lost: no version comes back.
	last := must[got](t, a, "kv_get", args{"key": "k"}).Version
	require.NoError(t, s.admin(t).FlushAll(t.Context()).Err())
	assert.Greater(t, must[set](t, a, "kv_set", args{"key": "k", "value": "z", "if_version": 0}).Version, last)
}

// TestRedisFull: a server without memory takes no changes, and answers reads.
func TestRedisFull(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	for name, reply := range map[string]string{
		"HTTP":             "HTTP/1.1 400 Bad Request\r\n\r\n",
		"nothing":          "",
		"huge string":      "$1099511627776\r\n",
		"largest string":   "$9223372036854775807\r\n",
		"negative":         "$-2\r\n",
		"huge array":       "*1099511627776\r\n",
		"deep array":       strings.Repeat("*1\r\n", 1<<20),
		"deep, one by one": "*2\r\n" + strings.Repeat("+\r\n*2\r\n", 2_390_000),
		"long line":        "+" + strings.Repeat("x", 1<<20) + "\r\n",
		"much":             strings.Repeat("*10000\r\n"+strings.Repeat("$-1\r\n", 10000), 400),
		"RESP3":            "%1\r\n+a\r\n+b\r\n",
		"wrong types":      strings.Repeat("*3\r\n:1\r\n*0\r\n+x\r\n", 100),
		"all OK":           strings.Repeat("+OK\r\n", 100),
		"echo":             "echo",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if reply == "" {
				need.Long(t, "waits for a time limit")
			}
			address := servertest.Answer(t, func(conn net.Conn) { serveNonsense(conn, reply) })
			a := newClient(t, openAt(t, address, Limits{}), "a", "")
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
	r := bufio.NewReader(conn)
	for buf := make([]byte, 64<<10); ; {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		text := reply
		if bytes.Contains(bytes.ToLower(buf[:n]), []byte("hello")) && reply != "echo" {
			text = "*0\r\n" // or no command would follow
		}
		if reply == "echo" {
			text = strings.Repeat("-ERR unknown command, with args beginning with: "+strings.ReplaceAll(string(buf[:n]), "\r\n", " ")+"\r\n", 10)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			return
		}
	}
}

// TestRedisTLS: the daemon talks to a server with TLS if it trusts the certificate for the
// server's name, and sends no password if it does not.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	pool := certify(t, s.dir)
	address := servertest.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, s.admin(t).ConfigSet(t.Context(), "tls-cert-file", filepath.Join(s.dir, "cert")).Err())
	require.NoError(t, s.admin(t).Do(t.Context(), "CONFIG", "SET", "tls-key-file", filepath.Join(s.dir, "key"), "tls-ca-cert-file", filepath.Join(s.dir, "cert"),
		"tls-auth-clients", "no", "tls-port", port).Err())
	var asked atomic.Int32
	open := func(config *tls.Config) *client {
		counted := reach("")
		counted.Secret = func(context.Context) (credential.Secret, error) {
			asked.Add(1)
			return credential.Known(testPassword), nil
		}
		r, err := OpenRedis(RedisOptions{Address: address, Username: testUser, TLS: config, Reach: counted}, Limits{})
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return newClient(t, r, "a", "")
	}
	for name, config := range map[string]*tls.Config{"no TLS": nil, "unknown authority": {ServerName: "redis.test"}, "another name": {ServerName: "other.test", RootCAs: pool}} {
		err := open(config).call(t, "kv_get", args{"key": "k"}, nil)
		assert.Equal(t, tools.Unavailable, code(err), name)
		if config != nil {
			assert.Contains(t, cause(err), "x509", name)
			assert.Zero(t, asked.Load(), name)
		}
		asked.Store(0)
	}
	a := open(&tls.Config{ServerName: "redis.test", RootCAs: pool})
	must[set](t, a, "kv_set", args{"key": "k", "value": strings.Repeat("v", door.MaxValue)})
	assert.Len(t, must[got](t, a, "kv_get", args{"key": "k"}).Value, door.MaxValue)
}

// certify makes a key and a certificate of redis.test in a directory.
func certify(t *testing.T, dir string) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	from := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"redis.test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, from, from, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cert"), cert, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(cert))
	return pool
}

// TestRedisOld: a server that does not know our commands is the operator's to replace,
// and the hint says so. The replies are those of Redis 2.8 and 5.0.
func TestRedisOld(t *testing.T) {
	t.Parallel()
	for version, replies := range map[string]map[string]string{
		"2.8, no user":  {"hello": "-ERR unknown command 'HELLO'", "auth": "-ERR wrong number of arguments for 'auth' command"},
		"2.8, no field": {"hello": "-ERR unknown command 'HELLO'", "auth": "+OK", "hset": "-ERR wrong number of arguments for 'hset' command"},
		"3.0":           {"hello": "-ERR unknown command 'HELLO'", "auth": "+OK", "hstrlen": "-ERR unknown command 'hstrlen'", "hmget": "-ERR unknown command 'hmget'"},
		"5.0":           {"hello": "-ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, ", "auth": "-ERR wrong number of arguments for 'auth' command"},
		"not ours":      {"hello": "-NOPROTO unsupported protocol version", "auth": "-ERR wrong number of arguments for 'auth' command"},
	} {
		address := servertest.Answer(t, func(conn net.Conn) { serveOld(conn, replies) })
		err := newClient(t, openAt(t, address, Limits{}), "a", "").call(t, "kv_set", args{"key": "k", "value": "v"}, nil)
		require.Equal(t, tools.Unavailable, code(err), "%s: %v", version, err)
		assert.Contains(t, err.(*tools.Error).Hint, "6.2", "%s: %s", version, cause(err))
		assert.NotContains(t, fmt.Sprint(err, cause(err)), testPassword)
	}
}

// serveOld answers the commands of a client.
func serveOld(conn net.Conn, replies map[string]string) {
	r := bufio.NewReader(conn)
	queued := 0
	for {
		var n, size int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
			return
		}
		var words []string
		for range n {
			if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
				return
			}
			word := make([]byte, size+len("\r\n"))
			if _, err := io.ReadFull(r, word); err != nil {
				return
			}
			words = append(words, strings.ToLower(string(word[:size])))
		}
		reply, bad := replies[words[0]]
		switch {
		case bad:
		case words[0] == "multi":
			queued, reply = 1, "+OK"
		case words[0] == "exec":
			queued, reply = 0, "-EXECABORT Transaction discarded because of previous errors."
		case queued > 0:
			reply = "+QUEUED"
		case words[0] == "time":
			reply = "*2\r\n$1\r\n1\r\n$1\r\n1"
		case words[0] == "hmget":
			reply = "*2\r\n$-1\r\n$-1"
		case words[0] == "zcard":
			reply = ":0"
		case words[0] == "zrange", words[0] == "hvals":
			reply = "*0"
		default:
			reply = "+OK"
		}
		if _, err := io.WriteString(conn, reply+"\r\n"); err != nil {
			return
		}
	}
}

// TestRedisUser: a wrong password is the operator's to repair, and in no error.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const wrong = "wr0ng-word"
	r, err := OpenRedis(RedisOptions{Address: s.socket(), Username: testUser, Reach: reach(wrong)}, Limits{})
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

// TestRedisPlain: strings that another program keeps under the agent's prefix can be read,
// and those of other agents cannot.
func TestRedisPlain(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	admin := s.admin(t)
	store := s.open(t, Limits{})
	a, b := newClient(t, store, "a", ""), newClient(t, store, "b", "")
	for name, value := range map[string]string{"a:plan": "plain", "a:session:1": "with a colon", "b:plan": "of b", "plan": "of nobody", "a:bytes": "\xff", "a:b:plan": "of a"} {
		require.NoError(t, admin.Set(t.Context(), name, value, 0).Err())
	}
	require.NoError(t, admin.LPush(t.Context(), "a:list", "x").Err())
	for key, want := range map[string]string{"plan": "plain", "session:1": "with a colon", "b:plan": "of a"} {
		assert.Equal(t, want, must[got](t, a, "kv_get", args{"key": key}).Value, key)
	}
	assert.Equal(t, "of b", must[got](t, b, "kv_get", args{"key": "plan"}).Value)
	for _, key := range []string{"list", "none", "%t", "%s", "a:plan", "../b:plan", "*"} {
		assert.Equal(t, tools.NotFound, code(a.call(t, "kv_get", args{"key": key}, nil)), key)
	}
	assert.Equal(t, tools.TooLarge, code(a.call(t, "kv_get", args{"key": "bytes"}, nil)))
	must[set](t, a, "kv_set", args{"key": "session:1", "value": "ours"})
	assert.Equal(t, "ours", must[got](t, a, "kv_get", args{"key": "session:1"}).Value)
	assert.Equal(t, "with a colon", admin.Get(t.Context(), "a:session:1").Val())
	assert.Equal(t, tools.Unavailable, code(a.call(t, "kv_set", args{"key": "plan", "value": "x"}, nil)))
	for _, key := range []string{"%t", "%s"} { // the index is no value
		assert.Equal(t, tools.NotFound, code(a.call(t, "kv_get", args{"key": key}, nil)))
	}
}
