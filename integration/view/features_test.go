package view

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	var held *os.File // by the process, one at a time
	open := func(name string) (err error) {
		held, err = os.OpenFile(name, os.O_RDWR, 0)
		return err
	}
	lock := func(name string, try func() error) (string, error) {
		err := open(name)
		if err == nil {
			if err = try(); err != nil {
				held.Close()
			}
		}
		return "", err
	}
	actions["hold"] = func(name, _ string) (string, error) { return "", open(name) }
	actions["held"] = func(string, string) (string, error) {
		text := make([]byte, 100)
		n, err := held.ReadAt(text, 0)
		if n > 0 {
			err = nil // io.EOF follows
		}
		return string(text[:n]), err
	}
	actions["release"] = func(string, string) (string, error) { _ = held.Close(); return "", nil }
	actions["flock"] = func(name, _ string) (string, error) {
		return lock(name, func() error { return unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	}
	actions["fcntl"] = func(name, _ string) (string, error) {
		return lock(name, func() error {
			return unix.FcntlFlock(held.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		})
	}
	actions["try"] = func(feature, _ string) (string, error) { return "yes", tries[feature]() }
}

// features are what programs try of a file system, in the order of the table in fleet.md.
var features = []string{"noreplace", "exchange", "hardlink", "FIFO", "unnamed", "xattr", "fallocate", "punch", "copy", "mmap", "birth"}

// TestElsewhereFeatures: what programs find in a view of a shared file system is what the table in fleet.md says.
func TestElsewhereFeatures(t *testing.T) {
	eachKind(t, func(t *testing.T, vol *harness.Volume) {
		one, _ := vol.NewHosts(t, map[string]string{"w": ""})
		one.Start()
		at := filepath.Join(vol.B, "bare")
		require.NoError(t, os.Mkdir(at, 0o755))
		require.NoError(t, os.Chown(at, 1000, 1000))
		view, bare := newPlace(t, one, one.View("w")), newPlace(t, one, at)
		var row strings.Builder
		for _, feature := range features {
			began := time.Now()
			in, below := view.do("try "+feature), bare.do("try "+feature)
			assert.Less(t, time.Since(began), time.Minute)
			fmt.Fprintf(&row, "\n%s: %s (%s below)", feature, in, below)
		}
		t.Log(vol.Type, row.String())
	})
}

// tries are what each feature is, in a working directory. They leave nothing.
var tries = map[string]func() error{
	"noreplace": func() error { return renamed(unix.RENAME_NOREPLACE) },
	"exchange":  func() error { return renamed(unix.RENAME_EXCHANGE) },
	"hardlink": func() error {
		return withFile(func(*os.File) error { defer os.Remove("second"); return os.Link("first", "second") })
	},
	"FIFO": func() error { defer os.Remove("pipe"); return unix.Mkfifo("pipe", 0o600) },
	"unnamed": func() error {
		fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"xattr": func() error {
		return withFile(func(f *os.File) error { return unix.Fsetxattr(int(f.Fd()), "user.a", []byte("1"), 0) })
	},
	"fallocate": func() error {
		return withFile(func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, 1<<16) })
	},
	"punch": func() error {
		return withFile(func(f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<12)
		})
	},
	"copy": func() error {
		return withFile(func(f *os.File) error {
			to, err := os.Create("second")
			if err != nil {
				return err
			}
			defer os.Remove("second")
			defer to.Close()
			_, err = unix.CopyFileRange(int(f.Fd()), nil, int(to.Fd()), nil, 4, 0)
			return err
		})
	},
	"mmap": func() error {
		defer os.Remove("first")
		_, err := store("first", "text")
		return err
	},
	"birth": func() error {
		return withFile(func(f *os.File) error {
			var st unix.Statx_t
			err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st)
			if err == nil && st.Mask&unix.STATX_BTIME == 0 {
				err = unix.ENODATA
			}
			return err
		})
	},
}

// withFile calls try with a new file of four bytes that is named first.
func withFile(try func(*os.File) error) error {
	f, err := os.Create("first")
	if err != nil {
		return err
	}
	defer os.Remove("first")
	defer f.Close()
	if _, err := f.WriteString("text"); err != nil {
		return err
	}
	return try(f)
}

// renamed renames a file; to another one with RENAME_EXCHANGE.
func renamed(flags uint) error {
	return withFile(func(*os.File) error {
		defer os.Remove("second")
		if flags == unix.RENAME_EXCHANGE {
			if err := os.WriteFile("second", nil, 0o600); err != nil {
				return err
			}
		}
		return unix.Renameat2(unix.AT_FDCWD, "first", unix.AT_FDCWD, "second", flags)
	})
}

// TestElsewhereLocks: locks hold among the clients of one host, and not between hosts.
func TestElsewhereLocks(t *testing.T) {
	eachKind(t, func(t *testing.T, vol *harness.Volume) {
		one, other := vol.NewHosts(t, map[string]string{"w": ""})
		one.Start()
		other.Start()
		a, near, far := newPlace(t, one, one.View("w")), newPlace(t, one, one.View("w")), newPlace(t, other, other.View("w"))
		require.Empty(t, a.do("write f text"))
		for _, kind := range []string{"flock", "fcntl"} {
			require.Empty(t, a.do(kind+" f"))
			require.Equal(t, "EAGAIN", near.do(kind+" f"))
			require.Empty(t, far.do(kind+" f"), "limits.md says so")
			require.Empty(t, a.do("release"))
			require.Empty(t, near.do(kind+" f"))
			require.Empty(t, near.do("release"))
			require.Empty(t, far.do("release"))
		}
	})
}
