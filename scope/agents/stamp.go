package agents

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
)

// stamp identifies one state of a file or directory. Every change of its content
// changes ctime, which no program can set.
type stamp struct {
	dev, ino     uint64
	mode         uint32
	nlink        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// dated is a stamp and when it was taken. Two changes within one tick of a file
// system's clock leave the same ctime: a stamp identifies a state only once its
// ctime is older than a tick.
type dated struct {
	stamp
	taken time.Time
}

// tick is longer than the coarsest clock of a file system, which is FAT's: 2 s.
const tick = 3 * time.Second

// still reports whether nothing has changed between d and now.
func (d dated) still(now dated) bool {
	return d.stamp == now.stamp && d.taken.Sub(time.Unix(d.ctime.Unix())) > tick
}

// stampOf takes the stamp of name in the directory at, or of at itself when
// name is empty. It does not follow a link.
func stampOf(at int, name string) (dated, error) {
	return stampAt(at, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
}

func stampAt(at int, name string, flags int) (dated, error) {
	taken := time.Now()
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, flags)
	for err == unix.EINTR {
		err = unix.Fstatat(at, name, &st, flags)
	}
	return dated{stamp{st.Dev, st.Ino, st.Mode, uint64(st.Nlink), st.Size, st.Mtim, st.Ctim}, taken}, err
}

// stillIn reports whether a directory of base, d when it was read, has the same
// names in it. The zero value is that of a directory that was missing.
func (d dated) stillIn(base, name string) bool {
	now, err := stampAt(unix.AT_FDCWD, filepath.Join(base, name), 0)
	return err == nil && d.still(now) || errors.Is(err, unix.ENOENT) && d == dated{}
}

// text is the content of a file as it was at one time.
type text struct {
	dated
	data []byte
	sum  string // SHA-256, in hex
}

// is reports whether two texts say the same. A nil text is of no file.
func (t *text) is(other *text) bool {
	return t != nil && other != nil && bytes.Equal(t.data, other.data)
}

// read returns the content of a file. It does not open one that is certain to
// be as it was in last. It takes only a regular file with one name: a link may
// lead into a view, and so may a second name.
func (d folder) read(name string, last *text) (*text, error) {
	if last != nil {
		if now, err := stampOf(int(d.Fd()), name); err == nil && last.still(now) {
			return last, nil
		}
	}
	// O_NONBLOCK, for a FIFO would make open wait for a writer.
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("is a symbolic link: put the file itself here")
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w: make it a file the daemon may read", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	now, err := stampOf(fd, "") // before it is read: a change meanwhile must show
	if err != nil {
		return nil, fmt.Errorf("stat: %w: check its file system", err)
	}
	switch {
	case now.mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("is no regular file: remove it")
	case now.nlink != 1:
		return nil, fmt.Errorf("has %d names, and one may be in a view: replace it by a copy", now.nlink)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w: check its file system", err)
	}
	if last != nil && bytes.Equal(last.data, data) {
		return &text{now, last.data, last.sum}, nil // one copy
	}
	sum := sha256.Sum256(data)
	return &text{now, data, hex.EncodeToString(sum[:])}, nil
}
