package harness

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Plant makes files on the host: "d/" is a directory, "a => b" a link, "f" a
// file that holds its own name, "f=text" one that holds the text.
func Plant(t testing.TB, dir string, entries ...string) {
	t.Helper()
	for _, e := range entries {
		name, target, link := strings.Cut(e, " => ")
		name, text, ok := strings.Cut(name, "=")
		if !ok {
			text = name
		}
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		switch {
		case link:
			require.NoError(t, os.Symlink(target, at))
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(at, 0o755))
		default:
			require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
		}
	}
}

// Picture returns all that a change of a tree would change: names, kinds, owners,
// modes, contents and the time of the last change of any of it.
func Picture(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(at, &st)
		}
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%o %d:%d %d links, %d bytes, changed %d.%09d", st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
		if d.Type().IsRegular() {
			text, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		rel, _ := filepath.Rel(dir, at)
		all[rel] = what
		return nil
	}))
	return all
}

// ReadAll returns the contents of a file.
func ReadAll(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}
