package sandbox

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

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
	bundle := bundleWith(spec.Trust)
	for at, data := range map[string][]byte{trustPath(): bundle, keystorePath: p.keystores.of(bundle)} {
		f, err := inMemory(path.Base(at), data)
		if err != nil {
			return err
		}
		option := "--file" // without a bind mount, for which bwrap reads the table of mounts
		if !below(at, Run) {
			option = "--ro-bind-data" // over a file of a read-only mount
		}
		p.add("--perms", "0444")
		p.fd(option, f, at)
	}
	return nil
}

// bundleWith returns the host's certificates and others.
func bundleWith(others []byte) []byte {
	var host []byte
	for _, name := range bundles {
		text, err := os.ReadFile(name)
		if err == nil && len(text) <= maxBundle {
			host = text
			break
		}
	}
	return slices.Concat(bytes.TrimSpace(host), []byte("\n"), others)
}

// inMemory returns a file with data that no file system has.
func inMemory(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, &fs.PathError{Op: "memfd_create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("certificates of the sandbox: %w", err)
	}
	return f, nil
}
