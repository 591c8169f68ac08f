package sandbox

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// bundles are the files of the host with the certificates of CAs: of Debian, Fedora and
// Alpine.
var bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// maxBundle limits a bundle, in bytes.
const maxBundle = 16 << 20

// trustPath returns where the sandbox has its bundle: in place of Debian's, which
// programs know by themselves, or where a sandbox has no /etc/ssl/certs, below Run.
func trustPath() string {
	if info, err := os.Lstat(bundles[0]); err == nil && info.Mode().IsRegular() {
		return bundles[0]
	}
	return Run + "/ca-certificates.crt"
}

// trustEnv returns the variables that programs read the path of a bundle from: OpenSSL, Go and
// Rust; Node.js; Python; git; curl; cargo; the tools of AWS; Deno; gRPC. Java has javaOptions.
func trustEnv() map[string]string {
	env := map[string]string{}
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		"GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT",
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"} {
		env[name] = trustPath()
	}
	return env
}

// trust mounts the bundle of a sandbox, and the same for Java: the host's certificates and
// those of the spec.
func (p *plan) trust(spec *Spec) error {
	if spec.Trust == nil {
		return nil
	}
	bundle, keystore, err := p.certificates.with(spec.Trust)
	if err != nil {
		return fmt.Errorf("certificates of the sandbox: %w", err)
	}
	for at, f := range map[string]*os.File{trustPath(): bundle, keystorePath: keystore} {
		option := "--file" // without a bind mount, for which bwrap reads the table of mounts
		if !below(at, Run) {
			option = "--ro-bind-data" // over a file of a read-only mount
		}
		p.add("--perms", "0444")
		p.fd(option, f, at)
	}
	return nil
}

// certificates keeps the files of the last bundle in memory. To read, join and convert the certificates takes two milliseconds, and
// they seldom change.
type certificates struct {
	mu               sync.Mutex
	host             hostBundle // it was made from this file of the host,
	others           []byte     // and from these
	bundle, keystore *os.File   // sealed; nil: there are none yet
}

// with returns new descriptors of the host's certificates and others, and of the same for Java. The caller closes them.
func (c *certificates) with(others []byte) (bundle, keystore *os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(others); err != nil {
		return nil, nil, err
	}
	if bundle, err = os.Open(procPath(c.bundle)); err != nil { // with an offset of its own
		return nil, nil, err
	}
	if keystore, err = os.Open(procPath(c.keystore)); err != nil {
		bundle.Close()
	}
	return bundle, keystore, err
}

// prepare makes the files for sessions that start soon. An error is that of their starts.
func (c *certificates) prepare(others []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.refresh(others)
}

// refresh makes the files unless they are as the host's file and others are now. The caller holds mu.
func (c *certificates) refresh(others []byte) error {
	host := findBundle()
	if c.bundle != nil && host == c.host && bytes.Equal(others, c.others) {
		return nil
	}
	text := host.with(others)
	bundle, err := inMemory("ca-certificates.crt", text)
	if err != nil {
		return err
	}
	keystore, err := inMemory("ca-certificates.jks", keystore(text))
	if err != nil {
		bundle.Close()
		return err
	}
	c.close()
	c.host, c.others, c.bundle, c.keystore = host, bytes.Clone(others), bundle, keystore
	return nil
}

// close frees the files. The caller holds mu, or is the last one.
func (c *certificates) close() {
	if c.bundle != nil {
		c.bundle.Close()
		c.keystore.Close()
	}
}

// hostBundle is the file that the host's certificates are in, as it is now: a new version is another file, or has another time.
type hostBundle struct {
	name           string // "": the host has none
	dev, ino       uint64
	size           int64
	changed, wrote unix.Timespec
}

// findBundle returns the file of the host.
func findBundle() hostBundle {
	for _, name := range bundles {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err == nil && st.Size <= maxBundle {
			return hostBundle{name, st.Dev, st.Ino, st.Size, st.Ctim, st.Mtim}
		}
	}
	return hostBundle{}
}

// with returns the certificates of the file, and others.
func (h hostBundle) with(others []byte) []byte {
	var text bytes.Buffer // a start waits for each page that is touched first
	text.Grow(int(h.size) + len(others) + bytes.MinRead + 1)
	if f, err := os.Open(h.name); err == nil { // programs trust the others where there is none
		_, _ = text.ReadFrom(io.LimitReader(f, maxBundle))
		f.Close()
	}
	text.WriteByte('\n')
	text.Write(others)
	return text.Bytes()
}

// inMemory returns a file with data that no file system has, and that nobody can change.
func inMemory(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, &fs.PathError{Op: "memfd_create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
