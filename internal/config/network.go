package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
)

// Network is the way of all agents' networks to the outside. No definition has it, and so no repository proposes it.
type Network struct {
	Upstream string // HOST:PORT of a proxy for HTTP; "": none
	CA       string // certificates that programs and the agents' proxies trust beside the host's, as PEM; "": none
}

// maxCA bounds a file of certificates, in bytes.
const maxCA = 1 << 20

// field reads the key network. Another file's value is replaced as a whole.
func (w *Network) field(n *yaml.Node) error {
	*w = Network{}
	return fields.Mapping(map[string]fields.Field{
		"upstream": func(n *yaml.Node) error {
			var text string
			err := fields.Text(&text)(n)
			if err == nil {
				w.Upstream, err = upstreamOf(text)
			}
			return err
		},
		"ca": func(n *yaml.Node) error {
			var file string
			err := fields.Text(&file)(n)
			if err == nil {
				w.CA, err = certificatesIn(file)
			}
			return err
		},
	})(n)
}

func upstreamOf(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil:
		return "", errors.New("has a login, which every reader of the file could use: name a proxy on this host that has it")
	case err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "":
		return "", fmt.Errorf("%q is no proxy: write http://HOST:PORT", text)
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), u.Port()), nil
}

// certificatesIn returns the certificates of a file, and nothing else of it.
func certificatesIn(file string) (string, error) {
	name, err := inHome(file)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(name) {
		return "", fmt.Errorf("%q is relative: write an absolute path", file)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // /etc/ssl has links
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%q is no file: write one with certificates, as PEM", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCA+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > maxCA:
		return "", fmt.Errorf("%q is larger than 1 MiB: name the company's certificates alone", name)
	}
	var found []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			found = append(found, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
	if found == nil {
		return "", fmt.Errorf("%q has no certificate: write a file with certificates, as PEM", name)
	}
	return string(found), nil
}
