package credential

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

const hush = "s3cret-value"

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := file("good", hush+"\n", 0o600)
	require.NoError(t, os.Symlink(good, filepath.Join(dir, "link")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	t.Setenv("SCOPEFS_TEST_SECRET", hush)
	for name, c := range map[string]struct {
		source Source
		want   string // of the error; "": the secret is read
	}{
		"env":              {Source{Env: "SCOPEFS_TEST_SECRET"}, ""},
		"env unset":        {Source{Env: "SCOPEFS_TEST_UNSET"}, "not set"},
		"file":             {Source{File: good}, ""},
		"file by link":     {Source{File: filepath.Join(dir, "link")}, ""},
		"file for a group": {Source{File: file("group", hush, 0o640)}, "chmod 600"},
		"file absent":      {Source{File: filepath.Join(dir, "none")}, "no such file"},
		"file relative":    {Source{File: "good"}, "absolute"},
		"fifo":             {Source{File: filepath.Join(dir, "fifo")}, "regular"},
		"directory":        {Source{File: dir}, "regular"},
		"empty":            {Source{File: file("empty", " \n", 0o600)}, "empty"},
		"two lines":        {Source{File: file("lines", hush+"\nInjected: x", 0o600)}, "one line"},
		"huge":             {Source{File: file("huge", string(make([]byte, 1<<20)), 0o600)}, "more than"},
		"command":          {Source{Command: []string{"/bin/echo", hush}}, ""},
		"command fails":    {Source{Command: []string{"/bin/sh", "-c", "echo " + hush + "; exit 3"}}, "exit status 3"},
		"command relative": {Source{Command: []string{"echo", hush}}, "absolute"},
		"command huge":     {Source{Command: []string{"/usr/bin/head", "-c", "1000000", "/dev/zero"}}, "more than"},
		"none":             {Source{}, "one of"},
		"two":              {Source{Env: "A", File: "/b"}, "one of"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.source.Read(t.Context())
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				assert.NotContains(t, err.Error(), hush)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, hush, got.Reveal())
		})
	}
}

func TestReadForeignFile(t *testing.T) {
	need.Root(t, "chown")
	file := filepath.Join(t.TempDir(), "theirs")
	require.NoError(t, os.WriteFile(file, []byte(hush), 0o600))
	require.NoError(t, os.Chown(file, 1234, 1234))
	_, err := Source{File: file}.Read(t.Context())
	assert.ErrorContains(t, err, "user 1234")
}

// TestReadCancelled: a command that hangs, with a child that holds the pipe, ends
// with its caller.
func TestReadCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := Source{Command: []string{"/bin/sh", "-c", "sleep 100 & sleep 100"}}.Read(ctx)
	assert.ErrorContains(t, err, "did not end")
	assert.Less(t, time.Since(began), 8*time.Second)
}

func TestSecretDoesNotPrint(t *testing.T) {
	s := Secret{hush}
	text, err := json.Marshal(map[string]any{"a": s, "b": &s})
	require.NoError(t, err)
	for _, shown := range []string{fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s), fmt.Sprint(&s), string(text), s.LogValue().String()} {
		assert.NotContains(t, shown, hush)
	}
	assert.Equal(t, "token ***!", s.Redact("token "+hush+"!"))
}

// TestRedact: a secret is found in the encodings in which services repeat requests.
func TestRedact(t *testing.T) {
	s := Secret{`p&ss "wörd"/+`}
	for name, text := range map[string]string{
		"plain":       s.text,
		"JSON":        string(must(json.Marshal(map[string]string{"a": "Bearer " + s.text}))),
		"HTML":        html.EscapeString(s.text),
		"query":       url.QueryEscape(s.text),
		"path":        url.PathEscape(s.text),
		"hexadecimal": hex.EncodeToString([]byte("Bearer " + s.text)),
		"HEX":         fmt.Sprintf("%X", s.text),
		"base64 0":    base64.StdEncoding.EncodeToString([]byte(s.text)),
		"base64 1":    base64.StdEncoding.EncodeToString([]byte("x" + s.text + "y")),
		"base64 2":    base64.URLEncoding.EncodeToString([]byte("xx" + s.text + "yyy")),
		"base64 7":    base64.StdEncoding.EncodeToString([]byte("Bearer " + s.text)),
		"UTF-16":      "\x00" + strings.Join(strings.Split(s.text, ""), "\x00"),
	} {
		got := s.Redact("<" + text + ">")
		assert.Contains(t, got, "***", name)
		assert.Less(t, len(got), 30, name)
	}
	basic := Secret{base64.StdEncoding.EncodeToString([]byte("user:long-password"))}
	assert.Equal(t, "*** *** is ***", basic.Redact(basic.text+" user:long-password is long-password"))
	short := Secret{"1234567"}
	assert.Equal(t, "1234567", short.Redact("1234567"))
}

// TestRedactCut: no part of a secret is left where a text was cut off.
func TestRedactCut(t *testing.T) {
	s := Secret{hush}
	for n := range len(hush) + 1 {
		want := "text "
		if n == len(hush) {
			want = "text ***"
		}
		assert.Equal(t, want, s.RedactCut("text "+hush[:n]), n)
	}
	assert.Equal(t, "", s.RedactCut(""))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestReadKey: a secret of a file of several. No error quotes the file.
func TestReadKey(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secrets.yml")
	write := func(text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
	write("A: first\nTOKEN: \"to: ken\"\nlist: [secret]\n")
	got, err := Source{File: name, Key: "TOKEN"}.Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "to: ken", got.Reveal())
	for text, want := range map[string]string{"A: secret": "has no text for the key", "TOKEN: [secret]": "has no text for the key", "TOKEN: [secret": "is no mapping", "TOKEN: &a secret\nB: *a": "is no mapping", "secret": "has no text"} {
		write(text)
		_, err := Source{File: name, Key: "TOKEN"}.Read(t.Context())
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "secret\"", text)
	}
	require.ErrorContains(t, Source{Env: "X", Key: "TOKEN"}.Check(), "key: is of a file")
}
