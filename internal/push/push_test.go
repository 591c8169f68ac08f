package push

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/tools/egress"
)

// open returns a sender to services, and its store, which has the device "phone" with the id "x".
func open(t *testing.T, services ...string) *Sender {
	t.Helper()
	state := t.TempDir()
	store, err := devices.Open(state)
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	require.NoError(t, store.Add(devices.Device{Name: "phone", ID: "x", Role: devices.Look}, "/root"))
	s, err := Open(state, services, store, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return s
}

// service starts a push service that the sender trusts.
func service(t *testing.T, h http.HandlerFunc) (*Sender, *httptest.Server) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	s := open(t, server.Listener.Addr().String())
	s.roots = x509.NewCertPool()
	s.roots.AddCert(server.Certificate())
	return s, server
}

// verify fails the test unless a request proves the key of a sender for an audience.
func verify(t *testing.T, r *http.Request, key, audience string) {
	t.Helper()
	token, given, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "vapid t="), ", k=")
	require.True(t, ok)
	assert.Equal(t, key, given)
	decode := func(text string) []byte {
		out, err := base64.RawURLEncoding.DecodeString(text)
		require.NoError(t, err)
		return out
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), decode(given))
	require.NoError(t, err)
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	sum, signature := sha256.Sum256([]byte(parts[0]+"."+parts[1])), decode(parts[2])
	require.Len(t, signature, 64)
	assert.True(t, ecdsa.Verify(public, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])))
	assert.JSONEq(t, `{"typ":"JWT","alg":"ES256"}`, string(decode(parts[0])))
	var claims struct {
		Aud, Sub string
		Exp      int64
	}
	require.NoError(t, json.Unmarshal(decode(parts[1]), &claims))
	assert.Equal(t, audience, claims.Aud)
	assert.InDelta(t, time.Now().Add(12*time.Hour).Unix(), claims.Exp, 12*3600)
	assert.True(t, strings.HasPrefix(claims.Sub, "https://"))
}

// TestSend: a service gets a proof, no content, and nothing of what waits.
func TestSend(t *testing.T) {
	got := make(chan *http.Request, 1)
	s, server := service(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		assert.Empty(t, body)
		got <- r
		w.WriteHeader(http.StatusCreated)
	})
	require.NoError(t, s.send(t.Context(), server.URL+"/push/secret"))
	r := <-got
	assert.Equal(t, "/push/secret", r.URL.Path)
	verify(t, r, s.Key(), server.URL)
	assert.Equal(t, "900", r.Header.Get("TTL"))
	assert.Equal(t, "waits", r.Header.Get("Topic"))
	assert.Empty(t, r.Header.Get("User-Agent"))
	assert.Zero(t, r.ContentLength)
}

// TestEndpoints: an endpoint selects one of the operator's services, and nothing else.
func TestEndpoints(t *testing.T) {
	s := open(t, "push.example", "127.0.0.1:4443")
	for _, endpoint := range []string{
		"", "x", "http://push.example/a", "https://push.example:444/a", "https://other.example/a", "https://push.example.evil.example/a",
		"https://evil.example@push.example/a", "https://push.example@evil.example/a", "https://push.example#@evil.example/", "https://127.0.0.1/a",
		"https://127.0.0.1:4444/a", "https://127.1:4443/a", "https://169.254.169.254/latest/meta-data/", "file:///etc/passwd",
		"https:push.example/a", "https://push.example\\@evil.example/", "https://push.example/" + strings.Repeat("a", maxEndpoint), "https://a.push.example/",
	} {
		_, _, err := s.check(endpoint)
		assert.Error(t, err, endpoint)
		if endpoint != "" {
			require.Error(t, s.Subscribe("x", endpoint), endpoint)
		}
	}
	for _, endpoint := range []string{"https://push.example/a?b=c", "https://PUSH.example:443/a", "https://127.0.0.1:4443/a"} {
		assert.NoError(t, s.Subscribe("x", endpoint), endpoint)
	}
	assert.ErrorIs(t, s.Subscribe("y", "https://push.example/a"), devices.ErrUnknown)
	for text, want := range map[string]string{"A.example": "a.example:443", "a.example:8443": "a.example:8443", "https://a.example": "", "a.example/": "", "*.example": "", "": "", "a:0": "", "a:x": ""} {
		got, err := config.PushHost(text)
		assert.Equal(t, want, got, text)
		assert.Equal(t, want == "", err != nil, text)
	}
}

// TestServicesOfRegions: *. stands for labels of a name, whose addresses are public all the same.
func TestServicesOfRegions(t *testing.T) {
	s := open(t, "*.notify.windows.example", "*.push.example:8443")
	for endpoint, want := range map[string]bool{
		"https://wns2-am3p.notify.windows.example/w/?token=x": true, "https://a.b.notify.windows.example/": true, "https://A.Notify.Windows.example:443/": true, "https://a.push.example:8443/": true,
		"https://notify.windows.example/": false, "https://.notify.windows.example/": false, "https://evilnotify.windows.example/": false, "https://*.notify.windows.example/": false,
		"https://a.notify.windows.example.evil.example/": false, "https://a.notify.windows.example:8443/": false, "https://a.push.example/": false, "https://a@evil.example/.notify.windows.example": false,
	} {
		_, _, err := s.check(endpoint)
		assert.Equal(t, want, err == nil, "%s: %v", endpoint, err)
	}
	s.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	}
	assert.ErrorIs(t, s.send(t.Context(), "https://a.notify.windows.example/a"), egress.ErrAddress)
	for _, text := range []string{"*", "*.", "*.com", "*.com.", "*:443", "*.*.example.com", "a.*.example.com", "*.127.0.0.1", "**.a.example", "*.a.example:0"} {
		_, err := config.ParsePushService(text)
		assert.Error(t, err, text)
	}
}

// TestKeyFile: the key is the same for the next daemon, also after one that was killed while it wrote it.
func TestKeyFile(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, os.Symlink("/nothing", filepath.Join(state, "."+keyFile)))
	first, err := openKey(state)
	require.NoError(t, err)
	second, err := openKey(state)
	require.NoError(t, err)
	assert.True(t, first.Equal(second))
	info, err := os.Lstat(filepath.Join(state, keyFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	left, err := filepath.Glob(filepath.Join(state, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestAddresses: a name that leads to an address of this host or network is not connected to.
func TestAddresses(t *testing.T) {
	s := open(t, "push.example", "127.0.0.1:4443")
	for _, ip := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1", "0.0.0.0"} {
		s.lookup = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr(ip)}, nil }
		assert.ErrorIs(t, s.send(t.Context(), "https://push.example/a"), egress.ErrAddress, ip)
	}
}

// TestHostileService: a service neither sends the daemon elsewhere, nor holds it, nor fills it.
func TestHostileService(t *testing.T) {
	t.Run("redirect", func(t *testing.T) {
		var elsewhere atomic.Int64
		target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
		defer target.Close()
		s, server := service(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL, http.StatusTemporaryRedirect)
		})
		assert.ErrorContains(t, s.send(t.Context(), server.URL+"/secret"), "answers 307")
		assert.Zero(t, elsewhere.Load())
	})
	t.Run("giant answer", func(t *testing.T) {
		var sent atomic.Int64
		ended := make(chan struct{})
		s, server := service(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			w.WriteHeader(http.StatusCreated)
			for {
				n, err := w.Write(make([]byte, 1<<16))
				if sent.Add(int64(n)); err != nil || sent.Load() > 1<<30 {
					return
				}
			}
		})
		assert.NoError(t, s.send(t.Context(), server.URL+"/secret"))
		<-ended
		assert.Less(t, sent.Load(), int64(64<<20))
	})
	t.Run("giant header", func(t *testing.T) {
		s, server := service(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) })
		assert.Error(t, s.send(t.Context(), server.URL+"/secret"))
	})
	t.Run("no answer", func(t *testing.T) {
		stop := make(chan struct{})
		s, server := service(t, func(w http.ResponseWriter, r *http.Request) { <-stop })
		defer close(stop)
		s.time = 50 * time.Millisecond
		err := s.send(t.Context(), server.URL+"/secret")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotContains(t, err.Error(), "secret", "the endpoint is a secret")
	})
	t.Run("no handshake", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		s := open(t, l.Addr().String())
		s.time = 50 * time.Millisecond
		assert.Error(t, s.send(t.Context(), "https://"+l.Addr().String()+"/secret"))
	})
	t.Run("another certificate", func(t *testing.T) {
		s, server := service(t, func(http.ResponseWriter, *http.Request) { t.Error("it got the push") })
		s.roots = nil
		assert.Error(t, s.send(t.Context(), server.URL+"/secret"))
	})
	t.Run("gone", func(t *testing.T) {
		s, server := service(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusGone) })
		require.NoError(t, s.Subscribe("x", server.URL+"/secret"))
		s.wake(t.Context())
		d, err := s.store.Get("x")
		require.NoError(t, err)
		assert.Empty(t, d.Push)
	})
}

// TestRun: what begins to wait within the pause is one push, and what waits no more is none.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Sender{wakes: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		var waits atomic.Bool
		var sent atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, waits.Load, func(context.Context) { sent.Add(1) })
		}()
		waits.Store(true)
		for range 10 {
			for range 100 {
				s.Wake()
			}
			time.Sleep(time.Second)
		}
		assert.Equal(t, int64(1), sent.Load(), "in ten seconds")
		time.Sleep(pause)
		assert.Equal(t, int64(2), sent.Load(), "for those that came meanwhile")
		time.Sleep(10 * pause)
		assert.Equal(t, int64(2), sent.Load())
		waits.Store(false)
		s.Wake()
		time.Sleep(pause)
		assert.Equal(t, int64(2), sent.Load(), "it was decided")
		cancel()
		<-done
	})
}

// TestKey: the key stays, others cannot read it, and one that is broken is said.
func TestKey(t *testing.T) {
	state := t.TempDir()
	first, err := openKey(state)
	require.NoError(t, err)
	again, err := openKey(state)
	require.NoError(t, err)
	assert.True(t, first.Equal(again))
	info, err := os.Stat(filepath.Join(state, keyFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(filepath.Join(state, keyFile), []byte("x"), 0o600))
	_, err = openKey(state)
	assert.ErrorContains(t, err, "remove it")
}
