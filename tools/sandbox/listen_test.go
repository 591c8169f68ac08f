package sandbox

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
)

func init() { helpers["rebind"] = rebind }

// rebind tries to take the address of the proxy, and holds what it got.
func rebind([]string) int {
	for _, addr := range [][4]byte{{127, 0, 0, 1}, {}} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			if err == nil {
				err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1)
			}
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: pid1.ProxyAddr().Port, Addr: addr})
		}
		if err == nil {
			err = unix.Listen(fd, 10)
		}
		fmt.Println(err)
	}
	time.Sleep(time.Minute)
	return 0
}

// sayName answers each connection with a name.
func sayName(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, name+"\n")
		c.Close()
	}
}

const hear = "exec 3<>/dev/tcp/127.0.0.1/3128; cat <&3"

func proxied(spec *Spec) { spec.Proxy = true }

// TestListener: a session with a proxy has a network with one socket, which the caller
// of Start serves and no process inside has.
func TestListener(t *testing.T) {
	s := newTestSession(t, proxied)
	l := s.Listener()
	require.NotNil(t, l)
	assert.Equal(t, ProxyAddress, l.Addr().String())
	go sayName(l, "ours")
	assert.Equal(t, "ours\n", sh(t, s, hear))
	assert.Equal(t, "lo\n", sh(t, s, "tail -n +3 /proc/net/dev | tr -d ' ' | cut -d: -f1"))
	assert.Equal(t, "1\n", sh(t, s, "tail -qn +2 /proc/net/tcp /proc/net/udp | grep -c ' 0A '"), "sockets that listen")
	assert.Equal(t, "0\n", sh(t, s, "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c 'socket:'; true"), "descriptors of commands")
	env := sh(t, s, "env")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"} {
		assert.Contains(t, env, name+"=http://127.0.0.1:3128\n")
	}
	assert.Contains(t, env, "NO_PROXY=localhost,127.0.0.1,::1\n")
	assert.Contains(t, env, "NODE_USE_ENV_PROXY=1\n")
	assert.Contains(t, env, "NODE_OPTIONS=--require=/etc/scopefs-node.cjs\n")
	assert.NotContains(t, sh(t, s, "exec 3<>/dev/tcp/192.0.2.1/80"), "timed out", "what ignores the variables fails at once")

	// The address cannot be taken, nor shared.
	thief, err := s.Exec(context.Background(), Command{Argv: []string{FileWorker, "rebind"}})
	require.NoError(t, err)
	defer thief.Close()
	buf := make([]byte, 100)
	n, _ := io.ReadAtLeast(thief.Stdout, buf, len("address already in use\n")*2)
	assert.Equal(t, strings.Repeat("address already in use\n", 2), string(buf[:n]))
	for range 20 {
		require.Equal(t, "ours\n", sh(t, s, hear))
	}
	sh(t, s, "kill -9 -1")
	assert.Equal(t, "ours\n", sh(t, s, hear), "no process of the sandbox closes it")

	require.NoError(t, s.Close())
	_, err = l.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
}

// TestListenersApart: a session reaches its own listener alone.
func TestListenersApart(t *testing.T) {
	h := newHost(t)
	var all []*Session
	for _, name := range []string{"one", "two", ""} {
		spec := newSpec(t)
		spec.Proxy = name != ""
		s, err := h.Start(context.Background(), spec)
		require.NoError(t, err)
		all = append(all, s)
		if name != "" {
			go sayName(s.Listener(), name)
		}
	}
	assert.Equal(t, "one\n", sh(t, all[0], hear))
	assert.Equal(t, "two\n", sh(t, all[1], hear))
	assert.Nil(t, all[2].Listener())
	assert.Contains(t, sh(t, all[2], hear), "Connection refused")
	assert.NotContains(t, sh(t, all[2], "env"), "PROXY")
	// The host's abstract sockets are in another network.
	abstract, err := net.Listen("unix", "@scopefs-test-"+filepath.Base(t.TempDir()))
	require.NoError(t, err)
	defer abstract.Close()
	assert.Equal(t, "0\n", sh(t, all[0], "grep -c scopefs-test /proc/net/unix; true"))
}

// TestHostileListener: what is no listening socket at the address is refused.
func TestHostileListener(t *testing.T) {
	need.Long(t, "it takes seconds")
	for _, how := range []string{"no listener", "file for a listener", "unconnected socket", "wrong port", "two listeners", "Unix listener"} {
		t.Run(how, func(t *testing.T) {
			spec := newSpec(t)
			proxied(&spec)
			misbehave(t, &spec, how)
			_, err := newHost(t).Start(context.Background(), spec)
			assert.ErrorIs(t, err, ErrEnded)
		})
	}
	spec := newSpec(t)
	spec.Proxy, spec.Network = true, true
	_, err := newHost(t).Start(context.Background(), spec)
	assert.ErrorIs(t, err, ErrInvalid)
}

// evilListeners are what an init in the hands of an attacker sends when it is ready.
func evilListeners(how string) (fds []int) {
	socket := func(port int, listen bool) int {
		fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		_ = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		if listen {
			_ = unix.Listen(fd, 1)
		}
		return fd
	}
	switch how {
	case "file for a listener":
		f, _ := os.Open("/etc/passwd")
		fd, _ := unix.Dup(int(f.Fd()))
		return []int{fd}
	case "unconnected socket":
		return []int{socket(3128, false)}
	case "wrong port":
		return []int{socket(3129, true)}
	case "two listeners":
		return []int{socket(3128, true), socket(3129, true)}
	case "Unix listener":
		fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		_ = unix.Bind(fd, &unix.SockaddrUnix{Name: "@x"})
		_ = unix.Listen(fd, 1)
		return []int{fd}
	}
	return nil
}

// TestTrust: programs trust the certificates of the spec beside those of the host's CAs.
func TestTrust(t *testing.T) {
	const ours = "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"
	s := newTestSession(t, func(spec *Spec) { spec.Trust = []byte(ours) })
	assert.Equal(t, ours, sh(t, s, "tail -n 3 $SSL_CERT_FILE"))
	host, _ := os.ReadFile(bundles[0])
	assert.Equal(t, strings.Count(string(host), "BEGIN CERT")+1, strings.Count(sh(t, s, "cat $CURL_CA_BUNDLE"), "BEGIN CERT"))
	assert.Contains(t, sh(t, s, "echo x >$SSL_CERT_FILE; echo x >>$NODE_EXTRA_CA_CERTS"), "Read-only file system")
	assert.Equal(t, "444\n", sh(t, s, "stat -c %a $REQUESTS_CA_BUNDLE"))
	for _, name := range []string{"PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"} {
		assert.Equal(t, trustPath()+"\n", sh(t, s, "echo $"+name))
	}
}

// TestCertificates: sessions share the files of the bundle until one of its parts changes, each reads them from their beginning, and
// nobody writes to them.
func TestCertificates(t *testing.T) {
	before := bundles
	t.Cleanup(func() { bundles = before })
	bundles = []string{filepath.Join(t.TempDir(), "bundle")}
	require.NoError(t, os.WriteFile(bundles[0], []byte("host"), 0o600))
	var c certificates
	defer c.close()
	read := func(others string) string {
		bundle, keystore, err := c.with([]byte(others))
		require.NoError(t, err)
		defer bundle.Close()
		defer keystore.Close()
		text, err := io.ReadAll(bundle)
		require.NoError(t, err)
		_, err = unix.Pwrite(int(c.bundle.Fd()), []byte("x"), 0)
		assert.ErrorIs(t, err, unix.EPERM)
		return string(text)
	}
	assert.Equal(t, "host\nours", read("ours"))
	first := c.bundle
	assert.Equal(t, "host\nours", read("ours"))
	assert.Same(t, first, c.bundle)
	assert.Equal(t, "host\ntheirs", read("theirs"))
	require.NoError(t, os.WriteFile(bundles[0]+".new", []byte("late"), 0o600))
	require.NoError(t, os.Rename(bundles[0]+".new", bundles[0]))
	assert.Equal(t, "late\ntheirs", read("theirs"))
	require.NoError(t, os.Remove(bundles[0]))
	assert.Equal(t, "\ntheirs", read("theirs"), "the host has none")
}

// TestJava: Java has the proxy and the bundle, and keeps the options that a caller sets.
func TestJava(t *testing.T) {
	need.Long(t, "it takes seconds")
	ca := certificate(t)
	s := newTestSession(t, func(spec *Spec) { spec.Trust = ca })
	trust := "-Djavax.net.ssl.trustStore=" + keystorePath + " -Djavax.net.ssl.trustStoreType=JKS"
	assert.Equal(t, trust+"\n", sh(t, s, "echo $JAVA_TOOL_OPTIONS"))
	assert.Equal(t, "444\n", sh(t, s, "stat -c %a "+keystorePath))
	p, err := s.Exec(context.Background(), Command{Argv: []string{"sh", "-c", "echo $JAVA_TOOL_OPTIONS"}, Env: map[string]string{"JAVA_TOOL_OPTIONS": "-Xmx1g"}})
	require.NoError(t, err)
	defer p.Close()
	out, err := io.ReadAll(p.Stdout)
	require.NoError(t, err)
	assert.Equal(t, trust+" -Xmx1g\n", string(out))

	for proxy, want := range map[bool]string{true: "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128", false: ""} {
		spec := newSpec(t)
		spec.Proxy = proxy
		other, err := s.host.Start(context.Background(), spec)
		require.NoError(t, err)
		assert.Equal(t, want+"\n", sh(t, other, "echo $JAVA_TOOL_OPTIONS"))
	}

	// The form of a keystore with the certificate alone.
	block, _ := pem.Decode(ca)
	store := keystore(append([]byte("text\n"), ca...))
	head := "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x02\x00\x010\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05X.509\x00\x00"
	assert.Equal(t, head+string(binary.BigEndian.AppendUint16(nil, uint16(len(block.Bytes))))+string(block.Bytes), string(store[:len(store)-sha1.Size]))
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Log("no keytool here, which would read the keystore")
		return
	}
	host, _ := os.ReadFile(bundles[0])
	list := sh(t, s, "keytool -list -storetype JKS -storepass '' -keystore "+keystorePath+" </dev/null 2>&1")
	assert.Contains(t, list, fmt.Sprintf("contains %d entries", strings.Count(string(host), "BEGIN CERT")+1))
}

// certificate returns the certificate of a new CA.
func certificate(t *testing.T) []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
