package folder

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
)

// stamp identifies the state of a file or directory. Every change of its
// content changes ctime, which programs cannot set.
type stamp struct {
	Dev, Ino     uint64
	mode         uint32
	nlink        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// Dated is a stamp and the time when it was taken. Two changes within one tick
// of a file system's clock have the same ctime. A stamp therefore identifies a
// state only if its ctime was more than a tick old.
type Dated struct {
	stamp
	Taken time.Time
}

// tick is longer than the coarsest clock of a file system: 2 s for FAT.
const tick = 3 * time.Second

// State returns a text that identifies the state.
func (d Dated) State() string { return fmt.Sprint(d.stamp) }

// Still reports whether nothing changed between d and now.
func (d Dated) Still(now Dated) bool {
	return d.stamp == now.stamp && d.Taken.Sub(time.Unix(d.ctime.Unix())) > tick
}

// StampOf returns the stamp of name in the directory at, or of at if name is
// empty. It does not follow a symbolic link.
func StampOf(at int, name string) (Dated, error) {
	return StampAt(at, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
}

// StampAt returns the stamp of a name in an open directory.
func StampAt(at int, name string, flags int) (Dated, error) {
	taken := time.Now()
	var st unix.Stat_t
	err := interrupted.Retry(func() error { return unix.Fstatat(at, name, &st, flags) })
	return Dated{stamp{st.Dev, st.Ino, st.Mode, uint64(st.Nlink), st.Size, st.Mtim, st.Ctim}, taken}, err
}

// StillIn reports whether a directory of base has the same names as when d was
// taken. The zero value stands for a missing directory.
func (d Dated) StillIn(base, name string) bool {
	now, err := StampAt(unix.AT_FDCWD, filepath.Join(base, name), 0)
	return err == nil && d.Still(now) || errors.Is(err, unix.ENOENT) && d == Dated{}
}

// Text is the content of a file at one time.
type Text struct {
	Dated
	Data []byte
	Sum  string // SHA-256, in hex
}

// Is reports whether two texts have the same content. A nil text equals none.
func (t *Text) Is(other *Text) bool {
	return t != nil && other != nil && bytes.Equal(t.Data, other.Data)
}

// ReadIn returns the content of a file in a directory that an agent may change, as Read does. The directory itself may be no link.
func ReadIn(dir, name string) (*Text, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Folder{File: f}.Read(name, nil)
}

// Read returns the content of a file. It does not open the file if it certainly
// equals last. It accepts only a regular file with one name, because a symbolic
// link or a second name may be in a view.
func (d Folder) Read(name string, last *Text) (*Text, error) {
	if last != nil {
		if now, err := StampOf(int(d.Fd()), name); err == nil && last.Still(now) {
			return last, nil
		}
	}
	// O_NONBLOCK: opening a FIFO would wait for a writer.
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("is a symbolic link: put the file itself here")
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w: make it a file the daemon may read", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	now, err := StampOf(fd, "") // before the read, so that a concurrent change shows
	if err != nil {
		return nil, fmt.Errorf("stat: %w: check its file system", err)
	}
	switch {
	case now.mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("is no regular file: remove it")
	case now.nlink != 1:
		return nil, fmt.Errorf("has %d names, and one may be in a view: replace it by a copy", now.nlink)
	}
	if d.user {
		if err := owned(fd); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w: check its file system", err)
	}
	if last != nil && bytes.Equal(last.Data, data) {
		return &Text{now, last.Data, last.Sum}, nil // share one copy
	}
	text := TextOf(data)
	text.Dated = now
	return text, nil
}

// TextOf returns a text that is of no file.
func TextOf(data []byte) *Text {
	sum := sha256.Sum256(data)
	return &Text{Data: data, Sum: hex.EncodeToString(sum[:])}
}
