package sandbox

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCapture(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abcd": "abcd", "abcdefgh": "abcdefgh", "abcdefghi": "abcd\n[1 bytes left out]\nfghi",
		"abc\xff": "abc\uFFFD", "abcéfghijk": "abc\n[3 bytes left out]\nhijk",
	} {
		for size := 1; size <= 9; size++ {
			c := newCapture(8)
			for rest := in; rest != ""; rest = rest[min(size, len(rest)):] {
				c.Write([]byte(rest[:min(size, len(rest))]))
			}
			assert.Equal(t, want, c.String(), "%q by %d", in, size)
		}
	}
}

// TestCollect runs commands to their end.
func TestCollect(t *testing.T) {
	session := newTestSession(t)
	run := func(ctx context.Context, script, stdin string) (Output, error) {
		return Collect(ctx, session, Command{Argv: []string{"bash", "-c", script}}, stdin, 4096, 100)
	}
	out, err := run(t.Context(), "pwd; cat; echo bad >&2; exit 3", strings.Repeat("x", 300_000))
	require.NoError(t, err)
	assert.Equal(t, 3, out.Exit.Code)
	assert.Equal(t, "bad\n", out.Stderr)
	assert.True(t, out.Cut)
	assert.True(t, strings.HasPrefix(out.Stdout, "/workspace\nxxx"))
	assert.Less(t, len(out.Stdout), 4200)

	out, err = run(t.Context(), "sleep "+seconds(7100)+" & echo answer", strings.Repeat("x", 300_000))
	require.NoError(t, err, "neither a background process nor unread input delays the answer")
	assert.Equal(t, "answer\n", out.Stdout)
	assert.False(t, out.Cut)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = run(ctx, "sleep "+seconds(7100), "")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = Collect(t.Context(), session, Command{Argv: []string{"no-such-program"}}, "", 1, 1)
	assert.ErrorIs(t, err, unix.ENOENT)
	require.NoError(t, session.Close())
	_, err = run(t.Context(), "true", "")
	assert.ErrorIs(t, err, ErrEnded)
}

// TestCopy shows a program that the session's user cannot reach on the host.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/prog", []byte("#!/bin/sh\necho ran $0\nid -u\n"), 0o700))
	require.NoError(t, os.Chmod(dir, 0o700))
	f, err := os.Open(dir + "/prog")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	at := Run + "/programs/prog"
	s := newTestSession(t, func(spec *Spec) { spec.Binds = []Bind{{File: f, At: at, Copy: true}} })
	assert.Contains(t, sh(t, s, at), "ran "+at+"\n")
	assert.Regexp(t, "(?s)Read-only.*Read-only", sh(t, s, "echo x >> "+at+"; chmod 777 "+at+"; rm "+at))
}
