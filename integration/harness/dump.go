package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a Dump has beside type, mode, owner, content, extended attributes and which names are one file.
const (
	Times = 1 << iota // of the last modification
	Links             // their number; the host counts those in the history as well
)

// Dump describes a tree, a line for each name. what has Times and Links.
func Dump(dir string, what int) (string, error) {
	var lines []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		line := fmt.Sprintf("%s %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		if what&Times != 0 {
			line += fmt.Sprintf(" %d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %.8x", len(text), hash(text))
		case unix.S_IFLNK:
			text, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " " + text
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if what&Links != 0 {
				line += fmt.Sprintf(" %d links", st.Nlink)
			}
			if first, ok := inodes[st.Ino]; ok {
				line += " = " + first
			} else {
				inodes[st.Ino] = rel
			}
		}
		lines = append(lines, line+xattrs(name))
		return nil
	})
	sort.Strings(lines)
	return strings.Join(lines, "\n"), err
}

func hash(b []byte) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func xattrs(name string) string {
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		return ""
	}
	var all []string
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		if size, err := unix.Lgetxattr(name, attr, value); err == nil {
			all = append(all, fmt.Sprintf(" %s=%x", attr, value[:size]))
		}
	}
	sort.Strings(all)
	return strings.Join(all, "")
}

// Dumped is Dump of a tree that nobody changes.
func Dumped(t testing.TB, dir string, what int) string {
	t.Helper()
	p, err := Dump(dir, what)
	require.NoError(t, err)
	return p
}

// SameTrees fails with the lines that differ.
func SameTrees(t testing.TB, want, got, what string) {
	t.Helper()
	if want == got {
		return
	}
	have := map[string]int{}
	for line := range strings.SplitSeq(want, "\n") {
		have[line]++
	}
	for line := range strings.SplitSeq(got, "\n") {
		have[line]--
	}
	var diff []string
	for line, n := range have {
		if n > 0 {
			diff = append(diff, "want "+line)
		} else if n < 0 {
			diff = append(diff, "got  "+line)
		}
	}
	sort.Slice(diff, func(i, j int) bool { return diff[i][5:] < diff[j][5:] })
	require.Fail(t, "the trees differ", "%s\n%s", strings.Join(diff, "\n"), what)
}
