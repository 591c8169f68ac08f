// Package tape keeps the output of a command in memory that outlives the process that reads it.
//
// A Tape is a memfd, memfd_create(2): whoever has its descriptor has what is on it. The output moves from the pipe to the tape
// within splice(2), whose offset is that of the open file description. A process that is killed meanwhile loses no byte and
// records none twice: the next one goes on at that offset.
package tape

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Tape is a stream of bytes at their own offsets. Its methods may be called at the same time, but for Record and Erase with
// themselves.
type Tape struct{ f *os.File }

// New returns an empty tape.
func New() (Tape, error) {
	const flags = unix.MFD_CLOEXEC
	fd, err := unix.MemfdCreate("scopefs-output", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("scopefs-output", flags)
	}
	if err != nil {
		return Tape{}, fmt.Errorf("memfd_create: %w", err)
	}
	return Tape{os.NewFile(uintptr(fd), "output")}, nil
}

// Open returns the tape of a descriptor, which becomes the tape's.
func Open(f *os.File) Tape { return Tape{f} }

// File returns another descriptor of the tape.
func (t Tape) File() (*os.File, error) {
	fd, err := unix.FcntlInt(t.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "output"), nil
}

// Close closes the descriptor. The memory is freed when nobody has one.
func (t Tape) Close() { t.f.Close() }

// Size returns the number of bytes that were recorded.
func (t Tape) Size() (int64, error) { return t.f.Seek(0, io.SeekCurrent) }

// Length returns the end of what WriteAt has written.
func (t Tape) Length() (int64, error) {
	info, err := t.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Record waits for bytes in a pipe, moves at most n of them to the tape, and returns how many. At the end of the pipe it
// returns io.EOF.
func (t Tape) Record(pipe *os.File, n int) (moved int, err error) {
	from, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	to, err := t.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	got := int64(0)
	splice := func(from int) error { // both descriptors stay open meanwhile
		failed := error(nil)
		err := to.Control(func(to uintptr) {
			for failed = unix.EINTR; failed == unix.EINTR; {
				got, failed = unix.Splice(from, nil, int(to), nil, n, unix.SPLICE_F_NONBLOCK)
			}
		})
		if err != nil {
			return err
		}
		return failed
	}
	waited := from.Read(func(fd uintptr) bool {
		err = splice(int(fd))
		return err != unix.EAGAIN
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, err
	case got == 0:
		return 0, io.EOF
	}
	return int(got), nil
}

// ReadAt implements io.ReaderAt. Bytes that were erased are zero.
func (t Tape) ReadAt(p []byte, off int64) (int, error) { return t.f.ReadAt(p, off) }

// WriteAt implements io.WriterAt, for a tape that nothing is recorded on.
func (t Tape) WriteAt(p []byte, off int64) (int, error) { return t.f.WriteAt(p, off) }

// Erase frees the memory of n bytes from off on, in whole pages.
func (t Tape) Erase(off, n int64) error {
	return unix.Fallocate(int(t.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}
