package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// written is how much Writable writes, in bytes: more than a log line, and more than a file
// system keeps beside its blocks.
const written = 64 << 10

// Writable writes to a directory, or to the nearest one above it that exists, and removes what
// it wrote. Without a log, and so without a directory for it, views change nothing and no
// sandbox starts.
func Writable(ctx context.Context, check, dir string) Line {
	t := try{check, Views, func(context.Context) []Line { return []Line{writable(dir)} }}
	return t.within(ctx)[0]
}

func writable(dir string) Line {
	at := dir
	info, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", at)
	}
	if err != nil {
		return Line{Status: Missing, Detail: err.Error(), Remedy: "give another one with --state"}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(at, &disk); err != nil {
		return Line{Status: Missing, Detail: fmt.Sprintf("%s: %v", at, err)}
	}
	free, size := int64(disk.Bavail)*disk.Bsize, int64(disk.Blocks)*disk.Bsize
	space := fmt.Sprintf("%d MiB of %d are free", free>>20, size>>20)
	switch err := writeTo(at); {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return Line{Status: Missing,
			Detail: fmt.Sprintf("%s: %v, %s: no command, call or change is let through without a log", at, err, space),
			Remedy: "free space, or give another file system with --state"}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return Line{Status: Degraded, Detail: fmt.Sprintf("%s is closed to this user", at),
			Remedy: "for agents of your own, set XDG_STATE_HOME or give --state"}
	case err != nil:
		return Line{Status: Missing, Detail: fmt.Sprintf("%s: %v", at, err), Remedy: "mount it for writing, or give another one with --state"}
	}
	if audit.LowSpace(free, size) {
		return Line{Status: Degraded, Detail: fmt.Sprintf("%s: %s", at, space), Remedy: "free space: on a full disk every change is refused"}
	}
	return Line{Detail: fmt.Sprintf("%s can be written to, %s", at, space)}
}

// writeTo writes to a file without a name. If the file system has no such files, writeTo makes
// a file and removes it.
func writeTo(dir string) error {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_WRONLY, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		if f, err = os.CreateTemp(dir, ".scopefs-doctor-"); err == nil {
			err = os.Remove(f.Name())
		}
	}
	if err == nil {
		defer f.Close()
		_, err = f.Write(make([]byte, written))
	}
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		return wrong.Err // the user does not know the name
	}
	return err
}
