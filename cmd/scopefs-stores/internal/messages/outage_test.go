package messages

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/messages"
)

// unavailableSoon calls both tools and wants Unavailable with a hint, within the
// bound of a call.
func unavailableSoon(t *testing.T, c *client, wantHint, wantCause string) {
	t.Helper()
	var calls sync.WaitGroup
	for tool, in := range map[string]args{"publish": {"subject": "s", "text": "x"}, "subscribe": {"subject": "s"}} {
		calls.Go(func() {
			began := time.Now()
			err := c.call(t.Context(), t, tool, in, nil)
			assert.Less(t, time.Since(began), door.Patience+3*time.Second)
			e, ok := errors.AsType[*tools.Error](err)
			if !assert.True(t, ok, "%v", err) || !assert.Error(t, e.Unwrap()) {
				return
			}
			assert.Equal(t, tools.Unavailable, e.Code)
			assert.Contains(t, e.Hint, wantHint)
			assert.Contains(t, e.Unwrap().Error(), wantCause)
			assert.NotContains(t, e.Unwrap().Error(), hush)
			assert.NotContains(t, e.Error(), "127.0.0.1")
		})
	}
	calls.Wait()
}

// TestOutsideDown: a server that is down, and comes again, also during a call.
func TestOutsideDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	port := -1
	start := func() *server.Server {
		s := startServer(t, func(o *server.Options) { o.StoreDir, o.Port = dir, port })
		port = s.Addr().(*net.TCPAddr).Port
		return s
	}
	s := start()
	store := openOutside(t, s.ClientURL(), Limits{})
	a := newClient(t, store, "a")
	a.publish(t, args{"subject": "s", "text": "1"})
	first := a.read(t, args{"subject": "s"})

	waiting := make(chan error, 1)
	go func() {
		waiting <- a.call(t.Context(), t, "subscribe", args{"subject": "none", "wait_seconds": 30}, nil)
	}()
	require.Eventually(t, func() bool { return waits(t, store, "a_messages") }, 10*time.Second, time.Millisecond)
	began := time.Now()
	s.Shutdown()
	s.WaitForShutdown()
	assert.Equal(t, tools.Unavailable, code(<-waiting), "a call that waits ends with the server")
	assert.Less(t, time.Since(began), 10*time.Second)
	unavailableSoon(t, a, "try again", "")

	start()
	assert.Equal(t, []string{"1"}, a.read(t, args{"subject": "s"}).texts())
	a.publish(t, args{"subject": "s", "text": "2"})
	assert.Equal(t, []string{"2"}, a.read(t, args{"subject": "s", "cursor": first.Cursor}).texts())
}

// waits reports whether a call waits at a consumer of a stream.
func waits(t *testing.T, store *Store, stream string) bool {
	s, err := store.link.stream.Stream(t.Context(), stream)
	if err != nil {
		return false
	}
	for c := range s.ListConsumers(t.Context()).Info() {
		if c.NumWaiting == 1 {
			return true
		}
	}
	return false
}

// TestOutsideRefuses: a wrong password, a user without rights, no JetStream, an
// older server.
func TestOutsideRefuses(t *testing.T) {
	t.Parallel()
	right := startServer(t, nil)
	wrong := outsideServer(t, right.ClientURL())
	file := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(file, []byte("not-"+hush), 0o600))
	wrong.Password = &credential.Source{File: file}
	store, err := openServer(wrong, Limits{})
	require.NoError(t, err)
	unavailableSoon(t, newClient(t, closed(t, store), "a"), "refuses the user", "")

	wrong.Password = &credential.Source{File: filepath.Join(t.TempDir(), "absent")}
	store, err = openServer(wrong, Limits{})
	require.NoError(t, err)
	unavailableSoon(t, newClient(t, closed(t, store), "a"), "try again", "password: file")

	plain := startServer(t, func(o *server.Options) { o.JetStream = false })
	unavailableSoon(t, newClient(t, openOutside(t, plain.ClientURL(), Limits{}), "a"), "JetStream", "")
}

// TestOutsideToken: without a user the password is a token.
func TestOutsideToken(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.Username, o.Password, o.Authorization = "", "", hush })
	with := outsideServer(t, s.ClientURL())
	with.User = ""
	store, err := openServer(with, Limits{})
	require.NoError(t, err)
	require.NoError(t, closed(t, store).Ping(t.Context()))
}

// TestOutsideTLS: the certificate of a server with TLS is checked, and a server
// without TLS gets no password.
func TestOutsideTLS(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	s := startServer(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, 2
	})
	address := strings.Replace(s.ClientURL(), "nats://", "tls://", 1)
	with := outsideServer(t, address)
	with.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	store, err := openServer(with, Limits{})
	require.NoError(t, err)
	a := newClient(t, closed(t, store), "a")
	a.publish(t, args{"subject": "s", "text": "secret"})
	assert.Equal(t, []string{"secret"}, a.read(t, args{}).texts())
	unavailableSoon(t, newClient(t, openOutside(t, address, Limits{}), "a"), "try again", "certificate")

	got := make(chan string, 10)
	liar := servertest.Answer(t, func(conn net.Conn) {
		fmt.Fprint(conn, "INFO {\"server_id\":\"x\",\"version\":\"2.15.2\",\"max_payload\":1000000}\r\n")
		text := make([]byte, 1024)
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		n, _ := conn.Read(text)
		got <- string(text[:n])
	})
	unavailableSoon(t, newClient(t, openOutside(t, "tls://"+liar, Limits{}), "a"), "try again", "")
	assert.NotContains(t, <-got, hush)
}

// TestOutsideNonsense: a server that does not speak the protocol, or too much of
// it, ends a call and nothing else.
func TestOutsideNonsense(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits for time limits")
	t.Parallel()
	const info = "INFO {\"server_id\":\"x\",\"version\":\"2.15.2\",\"max_payload\":1000000,\"headers\":true}\r\n"
	// answer sends text after the client's PING, and PONG before it.
	answer := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			fmt.Fprint(conn, info)
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if lines.Text() == "PING" {
					fmt.Fprint(conn, "PONG\r\n"+text)
				}
			}
		}
	}
	for name, talk := range map[string]func(net.Conn){
		"old":               func(conn net.Conn) { fmt.Fprint(conn, strings.Replace(info, "2.15.2", "2.10.18", 1)); answer("")(conn) },
		"closes":            func(net.Conn) {},
		"silent":            func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); time.Sleep(3 * time.Second) },
		"silent after PONG": answer(""),
		"HTTP":              func(conn net.Conn) { fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\n\r\n") },
		"endless line":      func(conn net.Conn) { flood(conn, "INFO ", strings.Repeat("x", 4096)) },
		"endless INFO":      func(conn net.Conn) { flood(conn, info, info) },
		"no JSON":           func(conn net.Conn) { fmt.Fprint(conn, "INFO {{{\r\n") },
		"huge message":      answer("MSG a 1 9223372036854775807\r\nx"),
		"larger message":    answer("MSG a 1 99999999999999999999999\r\nx"),
		"large message":     answer("MSG a 1 1048577\r\nx"),
		"negative message":  answer("MSG a 1 -1\r\n"),
		"huge headers":      answer("HMSG a 1 5 9223372036854775807\r\nx"),
		"headers too long":  answer("HMSG a 1 99 5\r\nNATS/\r\n"),
		"no message":        answer("MSG\r\n"),
		"error":             answer("-ERR 'a password " + hush + "'\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := openOutside(t, "nats://"+servertest.Answer(t, talk), Limits{})
			store.bound = time.Second
			unavailableSoon(t, newClient(t, store, "a"), "", "")
		})
	}
}

func flood(conn net.Conn, first, then string) {
	_, err := fmt.Fprint(conn, first)
	for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); {
		_, err = fmt.Fprint(conn, then)
	}
}

// TestOutsidePoisoned: what others put into an outside server does no harm.
func TestOutsidePoisoned(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := newClient(t, openOutside(t, s.ClientURL(), Limits{}), "a")
	a.publish(t, args{"subject": "s", "text": "1"})
	stray(t, s.ClientURL(), "a.s", &nats.Msg{Data: []byte{0xff, 0xfe}})
	stray(t, s.ClientURL(), "a.s", &nats.Msg{Data: []byte("forged"), Header: nats.Header{fromHeader: {"AB\x00"}}, Reply: "ab.s"})
	p := a.read(t, args{"subject": "s"})
	require.Equal(t, []string{"1", "(2 bytes that are no text, or too many)", "forged"}, p.texts())
	assert.Empty(t, p.Messages[2].From)
	stray(t, s.ClientURL(), "a.$x", &nats.Msg{Data: []byte("no subject of ours")})
	stray(t, s.ClientURL(), "a.\xff", &nats.Msg{Data: []byte("no text")})
	a.publish(t, args{"subject": "s", "text": "2"})
	p = a.read(t, args{})
	assert.Equal(t, []string{"1", "(2 bytes that are no text, or too many)", "forged", "2"}, p.texts(), "what is on no subject of an agent stops nothing")
	assert.Empty(t, a.read(t, args{"cursor": p.Cursor}).Messages)
}

// TestOutsideSlow: calls to a server that stops answering do not wait for each
// other.
func TestOutsideSlow(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits for time limits")
	t.Parallel()
	s := startServer(t, nil)
	frozen := make(chan struct{})
	proxy := servertest.Answer(t, func(conn net.Conn) {
		up, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			return
		}
		defer up.Close()
		go pass(up, conn, frozen)
		pass(conn, up, frozen)
	})
	store := openOutside(t, "nats://"+proxy, Limits{})
	store.bound = 2 * time.Second
	a := newClient(t, store, "a")
	a.publish(t, args{"subject": "s", "text": "1"})
	close(frozen)
	began := time.Now()
	done := make(chan tools.Code)
	for i := range 10 {
		go func() {
			done <- code(a.call(context.Background(), t, "publish", args{"subject": fmt.Sprint("s", i), "text": strings.Repeat("x", door.MaxText)}, nil))
		}()
	}
	for range 10 {
		assert.Equal(t, tools.Unavailable, <-done)
	}
	assert.Less(t, time.Since(began), 2*store.bound+3*time.Second)
}

// pass passes bytes on until it is frozen; then it keeps the connection open.
func pass(to, from net.Conn, frozen chan struct{}) {
	text := make([]byte, 4096)
	for {
		n, err := from.Read(text)
		if err != nil {
			to.Close()
			return
		}
		select {
		case <-frozen:
			time.Sleep(2 * door.Patience)
			return
		default:
		}
		if _, err := to.Write(text[:n]); err != nil {
			return
		}
	}
}

// TestEmbeddedKept: messages and positions outlive the store, one process has the
// directory, and nobody else can read it.
func TestEmbeddedKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "messages")
	first := OpenEmbedded(dir, Limits{})
	a := newClient(t, first, "a")
	a.publish(t, args{"subject": "s", "text": "1"})
	a.publish(t, args{"subject": "s", "text": "2"})
	p := a.read(t, args{"subject": "s", "limit": 1})
	a.read(t, args{"subject": "s", "cursor": p.Cursor})
	st, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm())
	listening, err := os.ReadFile("/proc/self/net/tcp")
	require.NoError(t, err)
	assert.NotContains(t, string(listening), fmt.Sprintf(":%04X 00000000:0000 0A", 4222))

	second := closed(t, OpenEmbedded(dir, Limits{Messages: 1}))
	err = second.Ping(t.Context())
	assert.ErrorContains(t, err, "another scopefs process")
	assert.Equal(t, tools.Unavailable, code(newClient(t, second, "b").call(t.Context(), t, "publish", args{"subject": "s", "text": "x"}, nil)))
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	assert.Equal(t, tools.Unavailable, code(a.call(t.Context(), t, "subscribe", args{"subject": "s"}, nil)), "it stays closed")

	a = newClient(t, second, "a")
	assert.Equal(t, []string{"2"}, a.read(t, args{"subject": "s"}).texts(), "and the new limits hold")
	require.NoError(t, second.Ping(t.Context()))
}

// TestEmbeddedWrong: a directory that is no directory.
func TestEmbeddedWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	for _, name := range []string{file, filepath.Join(dir, "link"), filepath.Join(file, "below")} {
		store := closed(t, OpenEmbedded(name, Limits{}))
		unavailableSoon(t, newClient(t, store, "a"), "try again", "")
	}
}

// TestEmbeddedFull: a full disk fails calls, and the store works again when there
// is space.
func TestEmbeddedFull(t *testing.T) {
	need.Root(t, "mount a small file system")
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("scopefs-test", dir, "tmpfs", 0, "size=2m,mode=0700"))
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	store := closed(t, OpenEmbedded(filepath.Join(dir, "messages"), Limits{}))
	store.bound = 2 * time.Second
	a, b := newClient(t, store, "a"), newClient(t, store, "b")
	b.publish(t, args{"subject": "s", "text": "of b"})
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		err = a.call(t.Context(), t, "publish", args{"subject": "s", "text": strings.Repeat("x", door.MaxText)}, nil)
	}
	e := agenttest.CodeIs(t, tools.Unavailable, err)
	assert.Contains(t, e.Hint, "disk", "%v: %v", err, e.Unwrap())
	require.NoError(t, os.Remove(ballast))
	require.Eventually(t, func() bool {
		return a.call(t.Context(), t, "publish", args{"subject": "s", "text": "again"}, nil) == nil
	}, 20*time.Second, 100*time.Millisecond)
	assert.Equal(t, []string{"of b"}, b.read(t, args{}).texts())
}

// certificate returns one for 127.0.0.1, and the pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestNothingUnaskedIsKept: no subscription outlives its request. What a server sends to one that does waits in memory.
func TestNothingUnaskedIsKept(t *testing.T) {
	s := OpenEmbedded(t.TempDir(), door.Limits{})
	defer s.Close()
	_, err := s.Publish(t.Context(), door.Message{Place: door.Place{Stream: "s", Subjects: "s.>", Filter: "s.x"}, From: "a", Text: "x"})
	require.NoError(t, err)
	assert.Zero(t, s.link.conn.NumSubscriptions())
}
