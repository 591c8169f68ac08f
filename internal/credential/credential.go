// Package credential reads the secrets that the daemon holds for stores, hosts
// and services: from its environment, from a file, or from a command's output.
package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/frontmatter"
)

// A Source says where a secret is. Exactly one field is set.
type Source struct {
	Env     string   // the name of a variable of the daemon's environment
	File    string   // an absolute path; see Read for who may own it
	Key     string   // of a mapping in YAML or JSON, which File is; "": the file is the secret
	Command []string // a program and its arguments; its standard output is the secret
}

// Check reports what is wrong with a source. It does not read the secret.
func (s Source) Check() error {
	set := 0
	for _, is := range []bool{s.Env != "", s.File != "", len(s.Command) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return errors.New("wants one of env, file and command")
	case s.Key != "" && s.File == "":
		return errors.New("key: is of a file: write file, too")
	case s.File != "" && !strings.HasPrefix(s.File, "/"):
		return fmt.Errorf("file: %q is relative: write an absolute path", s.File)
	case len(s.Command) > 0 && !strings.HasPrefix(s.Command[0], "/"):
		return fmt.Errorf("command: %q is relative: write an absolute path", s.Command[0])
	}
	return nil
}

const (
	maxSecret   = 64 << 10         // bytes
	commandTime = 10 * time.Second // for a command to print a secret and end
)

// Read returns the secret without white space at its ends. A file must be a
// regular file of the daemon's user or of root, with no permission for group and
// others; it may be reached through links. A command runs with the daemon's
// environment, without standard input, and must end within 10 s with status 0.
// No error contains a part of the secret or of the command's output.
func (s Source) Read(ctx context.Context) (Secret, error) { return s.read(ctx, nil) }

// With returns Read with further variables, which a client of the daemon has. Those of the daemon come first.
func (s Source) With(env map[string]string) func(context.Context) (Secret, error) {
	return func(ctx context.Context) (Secret, error) { return s.read(ctx, env) }
}

func (s Source) read(ctx context.Context, env map[string]string) (Secret, error) {
	if err := s.Check(); err != nil {
		return Secret{}, err
	}
	var text []byte
	var err error
	switch {
	case s.Env != "":
		value, ok := os.LookupEnv(s.Env)
		if given := env[s.Env]; given != "" && value == "" {
			value, ok = given, true
		}
		if !ok {
			return Secret{}, fmt.Errorf("env: %s is not set: set it in the environment of scopefs run, or of the daemon if one runs", s.Env)
		}
		text = []byte(value)
	case s.File != "":
		if text, err = readFile(s.File); err == nil && s.Key != "" {
			text, err = keyOf(text, s.Key)
		}
	default:
		text, err = output(ctx, s.Command)
	}
	if err != nil {
		return Secret{}, err
	}
	text = bytes.TrimSpace(text)
	switch {
	case len(text) == 0:
		return Secret{}, errors.New("the secret is empty: write it")
	case len(text) > maxSecret:
		return Secret{}, fmt.Errorf("the secret has more than %d bytes: shorten it", maxSecret)
	case bytes.ContainsAny(text, "\r\n\x00"):
		return Secret{}, errors.New("the secret has more than one line: write it in one")
	}
	return Secret{string(text)}, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block open
	if err != nil {
		return nil, fmt.Errorf("file: %w: write the secret to it, with chmod 600, or correct the path", err)
	}
	defer f.Close()
	st, err := f.Stat() // of the descriptor: the path may change
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("file: %q is no regular file: name one", name)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("file: %q is open to others: chmod 600 it", name)
	case owner != 0 && owner != os.Geteuid():
		return nil, fmt.Errorf("file: %q belongs to user %d: make it the daemon's user's, or root's", name, owner)
	}
	return io.ReadAll(io.LimitReader(f, maxSecret+2))
}

// keyOf returns the value of a key. Its errors quote nothing of the file.
func keyOf(text []byte, key string) ([]byte, error) {
	if len(text) > maxSecret {
		return nil, fmt.Errorf("file: has more than %d bytes: shorten it", maxSecret)
	}
	value, err := frontmatter.Text(text, key)
	if err != nil {
		return nil, errors.New("file: is no mapping in YAML or JSON without anchors: correct it")
	}
	if value == "" {
		return nil, fmt.Errorf("file: has no text for the key %q: write it", key)
	}
	return []byte(value), nil
}

func output(ctx context.Context, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second // a child of the command may hold the pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out := &bounded.Writer{Left: maxSecret + 2}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("command: %q did not end within %v: run it by hand", argv[0], commandTime)
		}
		return nil, fmt.Errorf("command: %q: %w: run it by hand", argv[0], err)
	}
	return out.Text, nil
}

// A Secret is a credential. It prints as "***" in every format; only Reveal
// returns it.
type Secret struct{ text string }

// Known returns a Secret of a text that another process of ours has read.
func Known(text string) Secret { return Secret{text} }

// Reveal returns the secret for the one connection that needs it.
func (s Secret) Reveal() string { return s.text }

// String returns "***".
func (s Secret) String() string { return "***" }

// GoString returns "***".
func (s Secret) GoString() string { return "***" }

// MarshalText returns "***".
func (s Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// LogValue returns "***".
func (s Secret) LogValue() slog.Value { return slog.StringValue("***") }

// Loopback reports whether a host is this one: nobody reads a credential on the way to it.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
