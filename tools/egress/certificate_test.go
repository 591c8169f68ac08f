package egress

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var discard = log.New(io.Discard, "", 0)

// authority signs the certificates of the hosts of tests.
var testCA = sync.OnceValues(func() (*x509.Certificate, crypto.Signer) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hosts"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, _ := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	cert, _ := x509.ParseCertificate(der)
	return cert, key
})

func authorityPEM(testing.TB) string {
	cert, _ := testCA()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
}

func authorityPool() *x509.CertPool {
	cert, _ := testCA()
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// certificate returns one for a name, valid for a time from now.
func certificate(t testing.TB, name string, valid time.Duration) tls.Certificate {
	ca, caKey := testCA()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid)}, ca, key.Public(), caKey)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
