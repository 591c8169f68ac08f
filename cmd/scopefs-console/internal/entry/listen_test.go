package entry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func certificate(t *testing.T, serial int64, until time.Time, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// TestCertify: a renewed certificate is served from then on, and one that cannot be used leaves the one before.
func TestCertify(t *testing.T) {
	socket, err := net.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	file, err := socket.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, socket.Close())
	fd, err := unix.Dup(int(file.Fd())) // Inherited closes it
	require.NoError(t, err)
	require.NoError(t, file.Close())
	l, err := Inherited(uintptr(fd), "0.0.0.0:0")
	require.NoError(t, err)
	defer l.Close()
	assert.False(t, l.Local)
	require.ErrorContains(t, l.Serve(http.NotFoundHandler()), "give a certificate", "nothing is served without TLS")
	tomorrow := time.Now().Add(24 * time.Hour)
	require.NoError(t, l.Certify(certificate(t, 1, tomorrow, "*.example.org", "console.example.org")))
	assert.Regexp(t, `^https://console\.example\.org:\d+/x$`, l.URL("/x", true))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Serve(http.NotFoundHandler())
	}()
	serial := func() int64 {
		conn, err := tls.Dial("tcp", "127.0.0.1:"+l.URL("", true)[len("https://console.example.org:"):], &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	assert.EqualValues(t, 1, serial())
	cert, _ := certificate(t, 2, tomorrow, "console.example.org")
	_, key := certificate(t, 3, tomorrow, "console.example.org")
	require.Error(t, l.Certify(cert, key), "another key")
	require.ErrorContains(t, l.Certify(certificate(t, 4, time.Now().Add(-time.Hour), "console.example.org")), "expired")
	require.ErrorContains(t, l.Certify(certificate(t, 5, tomorrow)), "names no host")
	require.ErrorContains(t, l.Certify(certificate(t, 6, tomorrow, "*.example.org")), "names no host")
	assert.EqualValues(t, 1, serial())
	require.NoError(t, l.Certify(certificate(t, 7, tomorrow, "console.example.org")))
	assert.EqualValues(t, 7, serial())
	l.Close()
	<-ended
}
