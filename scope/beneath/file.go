package beneath

import (
	"errors"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is one open object of a scope: a file or directory open for use, or any
// object held by an O_PATH descriptor (Root.Object). All its methods act on the
// descriptor. The caller must close it once.
type File struct {
	fd   int
	path bool // O_PATH: metadata only
}

// NewFile returns a File that owns fd, a descriptor of an open file.
func NewFile(fd int) File { return File{fd: fd} }

// FD returns the descriptor. The File keeps ownership.
func (f File) FD() int { return f.fd }

// Dir returns the File as a Dir. Both share the descriptor. The object must be
// a directory.
func (f File) Dir() Dir { return Dir{fd: f.fd} }

// Access reports whether this process may access the object in the given mode,
// by its effective ids: faccessat2(2), since Linux 5.8.
func (f File) Access(mode uint32) error {
	return retry(func() error {
		var empty byte
		const flags = unix.AT_EMPTY_PATH | unix.AT_EACCESS
		if _, _, errno := unix.Syscall6(unix.SYS_FACCESSAT2, uintptr(f.fd), uintptr(unsafe.Pointer(&empty)), uintptr(mode), flags, 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
}

// Close closes the file. close(2) is never retried.
func (f File) Close() error { return unix.Close(f.fd) }

// Flush does what close(2) does to an open file and leaves it open: a network file system sends what was written to its
// server. It returns the errors of that.
func (f File) Flush() error {
	second, err := f.Dup()
	if err != nil {
		return err
	}
	return second.Close()
}

// Stat returns the attributes of the object: statx(2).
func (f File) Stat() (Stat, error) {
	var s Stat
	err := statx(f.fd, "", &s)
	return s, err
}

// StatFS returns the attributes of the object's file system: statfs(2).
func (f File) StatFS() (unix.Statfs_t, error) {
	var s unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(f.fd, &s) })
	return s, err
}

// Readlink returns the text of a symbolic link, up to 4095 bytes. readlink(2).
func (f File) Readlink() (string, error) {
	buf := make([]byte, pathMax+1)
	var n int
	err := retry(func() (err error) {
		n, err = unix.Readlinkat(f.fd, "", buf)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Chmod sets the permission bits. For an O_PATH descriptor it calls
// fchmodat2(2), Linux 6.6. On older kernels it opens a directory again, and
// returns EOPNOTSUPP for other files and for directories that it may not read:
// the caller uses Dir.Chmod.
func (f File) Chmod(mode uint32) error {
	return retry(func() error {
		if !f.path {
			return unix.Fchmod(f.fd, mode&07777)
		}
		err := emptyPathChmod(f.fd, mode&07777)
		if err == unix.EOPNOTSUPP {
			err = reopenChmod(f.fd, mode&07777)
		}
		return err
	})
}

// reopenChmod is fchmod(2) of a directory that is open with O_PATH. The directory
// may have no name any more.
func reopenChmod(fd int, mode uint32) error {
	dir, err := openat2(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0, resolve)
	if err != nil {
		return unix.EOPNOTSUPP
	}
	defer unix.Close(dir)
	return unix.Fchmod(dir, mode)
}

// emptyPathChmod calls fchmodat2(fd, "", mode, AT_EMPTY_PATH). The wrapper in
// x/sys hides ENOSYS and rejects the flag on older kernels.
func emptyPathChmod(fd int, mode uint32) error {
	var empty byte
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(fd), uintptr(unsafe.Pointer(&empty)), uintptr(mode), unix.AT_EMPTY_PATH, 0, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOSYS:
		return unix.EOPNOTSUPP
	}
	return errno
}

// Chmod sets the permission bits of name on kernels without fchmodat2(2). The
// system call follows a symbolic link at name. Use it only for a directory on a
// mount with MOUNT_ATTR_NOSYMFOLLOW, as a view's is: there it returns ELOOP for
// a link.
func (d Dir) Chmod(name string, mode uint32) error {
	return retry(func() error { return unix.Fchmodat(d.fd, name, mode&07777, 0) })
}

// Chown sets the owner and group. An id of -1 is left unchanged: fchownat(2).
func (f File) Chown(uid, gid int) error {
	return retry(func() error { return unix.Fchownat(f.fd, "", uid, gid, unix.AT_EMPTY_PATH) })
}

// Utimes sets the access and modification times. UTIME_NOW and UTIME_OMIT work
// as in utimensat(2).
func (f File) Utimes(atime, mtime unix.Timespec) error {
	ts := []unix.Timespec{atime, mtime}
	return retry(func() error { return unix.UtimesNanoAt(f.fd, "", ts, unix.AT_EMPTY_PATH) })
}

// Truncate sets the length in bytes of a file that is open for writing.
func (f File) Truncate(size int64) error {
	return retry(func() error { return unix.Ftruncate(f.fd, size) })
}

// ReadAt reads len(p) bytes at off. It reads fewer at the end of the file or if
// a later read fails.
func (f File) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Pread(f.fd, p[done:], off+int64(done))
			return err
		})
		if err != nil && done == 0 {
			return 0, err
		}
		if err != nil || n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

// Reader returns the file as an io.ReaderAt.
func (f File) Reader() io.ReaderAt { return readerAt{f} }

type readerAt struct{ File }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.File.ReadAt(p, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// WriteAll writes p at off, or fails: with ENOSPC if there is room for a part of it.
func (f File) WriteAll(p []byte, off int64) error {
	n, err := f.WriteAt(p, off, false)
	if err == nil && n < len(p) {
		err = unix.ENOSPC
	}
	return err
}

// WriteAt writes p at off. With appends it writes at the current end of the
// file instead: RWF_APPEND, pwritev2(2). Each call has the flag because
// fcntl(2) can change O_APPEND of the writer's descriptor at any time. It
// returns the bytes written without an error if a later write fails.
func (f File) WriteAt(p []byte, off int64, appends bool) (int, error) {
	flags := 0
	if appends {
		flags = unix.RWF_APPEND
	}
	done := 0
	for done < len(p) {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Pwritev2(f.fd, [][]byte{p[done:]}, off+int64(done), flags)
			return err
		})
		if err != nil && done == 0 {
			return 0, err
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			break
		}
		done += n
	}
	return done, nil
}

// CopyTo copies up to n bytes from off to toOff of to, within the kernel:
// copy_file_range(2).
func (f File) CopyTo(to File, off, toOff int64, n int) (int, error) {
	var done int
	err := retry(func() (err error) {
		done, err = unix.CopyFileRange(f.fd, &off, to.fd, &toOff, n, 0)
		return err
	})
	return done, err
}

// Clone makes the file share all data of from, which it copies when either file
// changes: FICLONE, ioctl_ficlone(2). The file must be open for writing and from for
// reading. Clone returns EOPNOTSUPP, EINVAL or ENOTTY if the file system shares no
// data between files, and EXDEV for files of two file systems.
func (f File) Clone(from File) error {
	return retry(func() error { return unix.IoctlFileClone(f.fd, from.fd) })
}

// CopySparse copies the first size bytes of from to the file, which must be empty, without the holes. It returns nil if
// from becomes shorter meanwhile. The file has the size when all data is written: after a power failure its size shows whether
// it is whole.
func (f File) CopySparse(from File, size int64) error {
	end := func() error {
		if st, err := f.Stat(); err != nil || int64(st.Size) >= size {
			return err
		}
		_, err := f.WriteAt([]byte{0}, size-1, false)
		return err
	}
	buffer := make([]byte, min(size, 256<<10))
	for at := int64(0); at < size; {
		data, err := from.Seek(at, unix.SEEK_DATA)
		if err == unix.ENXIO { // the rest is a hole
			return end()
		}
		if err != nil {
			return err
		}
		hole, err := from.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = data; at < min(hole, size); {
			n, err := from.ReadAt(buffer[:min(int64(len(buffer)), hole-at)], at)
			if err != nil {
				return err
			}
			if n == 0 {
				return end() // it has become shorter
			}
			if wrote, err := f.WriteAt(buffer[:n], at, false); err != nil || wrote < n {
				return errors.Join(err, unix.ENOSPC)
			}
			at += int64(n)
		}
	}
	return end()
}

// LinkTo links a file that has no name as name in to: linkat(2), AT_EMPTY_PATH.
// The kernel allows it to the process that opened the file (Linux 6.10) or that
// has CAP_DAC_READ_SEARCH. For others it returns ENOENT.
func (f File) LinkTo(to Dir, name string) error {
	return retry(func() error { return unix.Linkat(f.fd, "", to.fd, name, unix.AT_EMPTY_PATH) })
}

// Lock takes an exclusive lock on this open file and blocks until it has it:
// flock(2).
func (f File) Lock() error { return retry(func() error { return unix.Flock(f.fd, unix.LOCK_EX) }) }

// Unlock releases the lock.
func (f File) Unlock() error { return unix.Flock(f.fd, unix.LOCK_UN) }

// Unwritten returns an error if a process has the file open for writing, or mapped so, or if the file system does not say. f is open
// for reading. The kernel grants a lease for reading only if nobody writes: F_SETLEASE, fcntl(2).
func (f File) Unwritten() error {
	_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err
}

// Allocate calls fallocate(2). The file system decides which modes it supports.
func (f File) Allocate(mode uint32, off, n int64) error {
	return retry(func() error { return unix.Fallocate(f.fd, mode, off, n) })
}

// Seek calls lseek(2), for SEEK_DATA and SEEK_HOLE.
func (f File) Seek(off int64, whence int) (int64, error) {
	return unix.Seek(f.fd, off, whence)
}

// Sync writes the file to the disk: fsync(2). With dataOnly it omits metadata
// that is not needed to read the data: fdatasync(2).
func (f File) Sync(dataOnly bool) error {
	return retry(func() error {
		if dataOnly {
			return unix.Fdatasync(f.fd)
		}
		return unix.Fsync(f.fd)
	})
}

// SyncFS writes the file system of the file to the disk: syncfs(2).
func (f File) SyncFS() error { return retry(func() error { return unix.Syncfs(f.fd) }) }

// ReadDirent fills p with directory entries in the kernel's format, from the
// end of the previous call. It returns 0 at the end: getdents64(2).
func (f File) ReadDirent(p []byte) (int, error) {
	var n int
	err := retry(func() (err error) {
		n, err = unix.Getdents(f.fd, p)
		return err
	})
	return n, err
}

// Dup returns a second descriptor of the same open file.
func (f File) Dup() (File, error) {
	fd, err := dup(f.fd)
	if err != nil {
		return File{fd: -1}, err
	}
	return File{fd: fd, path: f.path}, nil
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// TryLock is Lock that does not block. It returns EWOULDBLOCK if another open file has the lock.
func (f File) TryLock() error {
	return unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB)
}
