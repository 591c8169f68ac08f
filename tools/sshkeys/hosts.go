package sshkeys

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/scopefs/scopefs/internal/bounded"
)

// maxKnown bounds a file of known hosts, in bytes.
const maxKnown = 4 << 20

// Host is a host that an agent may connect to.
type Host struct {
	Name string
	Port uint16
}

func (h Host) address() string { return net.JoinHostPort(h.Name, strconv.Itoa(int(h.Port))) }

// Known are the host keys that files of known hosts have: sshd(8).
type Known struct {
	Names []Host // those of the files that are written out
	check ssh.HostKeyCallback
}

// ReadKnown reads files of known hosts. It leaves out missing files, and lines that it does not understand.
func ReadKnown(files ...string) (*Known, error) {
	var text []byte
	k := &Known{}
	for _, name := range files {
		all, err := bounded.File(name, maxKnown)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(all) {
			line = bytes.TrimSpace(line)
			_, hosts, _, _, _, err := ssh.ParseKnownHosts(line)
			if err != nil {
				continue
			}
			text = append(append(text, line...), '\n')
			for _, name := range hosts {
				if strings.ContainsAny(name, "*?!|") {
					continue
				}
				at := Host{name, 22}
				if host, port, err := net.SplitHostPort(name); err == nil {
					n, _ := strconv.ParseUint(port, 10, 16)
					at = Host{host, uint16(n)}
				}
				k.Names = append(k.Names, at)
			}
		}
	}
	if text == nil {
		k.check = func(string, net.Addr, ssh.PublicKey) error { return &knownhosts.KeyError{} }
		return k, nil
	}
	f, err := os.CreateTemp("", "scopefs-known-") // knownhosts reads files alone
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err = f.Write(text); err == nil {
		k.check, err = knownhosts.New(f.Name())
	}
	return k, err
}

// Of returns those of hosts that have a host key.
func (k *Known) Of(hosts []Host, key ssh.PublicKey) (names []string) {
	for _, h := range hosts {
		if k.check(h.address(), noAddr{h}, key) == nil && !slices.Contains(names, h.String()) {
			names = append(names, h.String())
		}
	}
	return names
}

// String is the name, with a port other than 22.
func (h Host) String() string {
	if h.Port == 22 {
		return h.Name
	}
	return h.address()
}

// maxLines bounds the lines of a sandbox, in bytes.
const maxLines = 48 << 10

// Lines returns the lines of known_hosts for hosts, as many as there is room for.
func (k *Known) Lines(hosts []Host) (text string) {
	for _, h := range hosts {
		want, _ := k.check(h.address(), noAddr{h}, noKey{}).(*knownhosts.KeyError)
		for i := 0; want != nil && i < len(want.Want); i++ {
			line := knownhosts.Line([]string{h.address()}, want.Want[i].Key) + "\n"
			if len(text)+len(line) <= maxLines && !strings.Contains(text, line) {
				text += line
			}
		}
	}
	return text
}

// noKey is a key that no host has.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return os.ErrInvalid }

// noAddr is the address of a host that is not looked up.
type noAddr struct{ Host }

func (noAddr) Network() string  { return "tcp" }
func (a noAddr) String() string { return a.address() }
