package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNetwork: the way to the outside is a proxy without a login, and certificates alone, of one file as a whole.
func TestNetwork(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write := func(name, text string) string {
		at := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
		return at
	}
	ca := write("ca.pem", "the company's\n"+cert+string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))+cert)
	s, err := Parse([]byte("network: {upstream: 'http://Proxy.Corp:3128/', ca: "+ca+"}"), Checks{})
	require.NoError(t, err)
	assert.Equal(t, Network{Upstream: "proxy.corp:3128", CA: cert + cert}, s.Network)

	s, err = parse([]text{{"a", []byte("network: {upstream: 'http://proxy:1', ca: " + ca + "}")}, {"b", []byte("network: {upstream: 'http://[::1]:2'}")}}, Checks{})
	require.NoError(t, err)
	assert.Equal(t, Network{Upstream: "[::1]:2"}, s.Network, "no certificate of one text beside the proxy of another")

	for text, want := range map[string]string{
		"{upstream: 'https://proxy:1'}":          "is no proxy: write http://HOST:PORT",
		"{upstream: 'http://proxy'}":             "is no proxy",
		"{upstream: 'proxy:3128'}":               "is no proxy",
		"{upstream: 'http://proxy:1/x'}":         "is no proxy",
		"{upstream: 'http://me:secret@proxy:1'}": "has a login",
		"{ca: ca.pem}":                           "is relative",
		"{ca: " + dir + "}":                      "is no file",
		"{ca: " + dir + "/none}":                 "no such file",
		"{ca: " + write("text", "x") + "}":       "has no certificate",
		"{ca: /dev/zero}":                        "is no file",
		"{allow: [a.example]}":                   "unknown key",
		"http://proxy:1":                         "is a text",
	} {
		_, err := Parse([]byte("network: "+text), Checks{})
		assert.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "secret", text)
	}
}
