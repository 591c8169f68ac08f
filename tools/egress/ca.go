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
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/durable"
)

// A CA signs the certificates that the proxies of a daemon show instead of the hosts'.
// Sandboxes trust it; nothing else does.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	*leaves
}

// leaves are the certificates of hosts, with one key, which is never on a disk.
type leaves struct {
	key  *ecdsa.PrivateKey
	sign func(host string, key crypto.PublicKey) (chain [][]byte, err error)

	mu   sync.Mutex
	kept map[string]*tls.Certificate // by host
}

func newLeaves(sign func(host string, key crypto.PublicKey) ([][]byte, error)) (*leaves, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &leaves{key: key, sign: sign, kept: map[string]*tls.Certificate{}}, err
}

// The lives of certificates. A host's is short, because the sandboxes that it is
// for are.
const (
	caLife   = 5 * 365 * 24 * time.Hour
	caRenew  = 30 * 24 * time.Hour // before its end
	leafLife = 3 * 24 * time.Hour
	skew     = time.Hour // that clocks may differ
)

// maxLeaves limits the certificates that are kept.
const maxLeaves = 1024

// caName is the file of a CA: its certificate and its key, as PEM.
const caName = "network-ca.pem"

// OpenCA returns the CA whose key is in a directory, and makes a new one if there
// is none or its life ends within 30 days. The file must be a regular file of the
// daemon's user or of root, without permissions for others. The directory must be
// the daemon's own, and in no view.
func OpenCA(dir string) (*CA, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("network CA: %w", err)
	}
	defer root.Close()
	ca, err := readCA(root)
	if errors.Is(err, fs.ErrNotExist) || err == nil && time.Until(ca.cert.NotAfter) < caRenew {
		ca, err = makeCA(root)
	}
	if err != nil {
		return nil, fmt.Errorf("network CA: %w", err)
	}
	ca.leaves, err = newLeaves(ca.signLeaf)
	return ca, err
}

func readCA(root *os.Root) (*CA, error) {
	f, err := root.OpenFile(caName, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 || owner != 0 && owner != os.Geteuid() {
		return nil, fmt.Errorf("%s: is open to others or not yours: remove it, and a new one is made", caName)
	}
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, err
	}
	ca, err := parseCA(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove it, and a new one is made", caName, err)
	}
	return ca, nil
}

func parseCA(text []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("is no CA with an ECDSA key")
	}
	return &CA{cert: pair.Leaf, key: key}, nil
}

// makeCA writes a new CA in place of the one that is there.
func makeCA(root *os.Root) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial := newSerial()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"scopefs"}, CommonName: "scopefs network " + serial.Text(36)[:8]},
		NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := durable.Replace(root, caName, text, durable.Options{Shared: true}); err != nil {
		return nil, err
	}
	return parseCA(text)
}

// newSerial returns 127 random bits: RFC 5280 has at most 20 bytes, above zero.
func newSerial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // cannot fail
	return n.Add(n, big.NewInt(1))
}

// PEM returns the certificate for trust stores.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

// leaf returns the certificate of one host, in canonical form.
func (l *leaves) leaf(host string) (*tls.Certificate, error) {
	l.mu.Lock()
	kept := l.kept[host]
	l.mu.Unlock()
	if kept != nil && time.Until(kept.Leaf.NotAfter) > leafLife/2 {
		return kept, nil
	}
	chain, err := l.sign(host, l.key.Public())
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	made := &tls.Certificate{Certificate: chain, PrivateKey: l.key, Leaf: leaf}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) >= maxLeaves {
		clear(l.kept)
	}
	l.kept[host] = made
	return made, nil
}

// signLeaf returns the certificate of a host and that of the CA.
func (c *CA) signLeaf(host string, key crypto.PublicKey) ([][]byte, error) {
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{Organization: []string{"scopefs"}},
		NotBefore: time.Now().Add(-skew), NotAfter: time.Now().Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, key, c.key)
	return [][]byte{der, c.cert.Raw}, err
}
