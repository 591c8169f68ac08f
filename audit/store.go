package audit

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// store is the directory of a log, as one process that appends sees it. What it knows of the last segment is checked
// against the disk by acquire, for others append too.
type store struct {
	root  *os.Root
	limit int64 // of a segment, in bytes

	lock  *os.File
	file  *os.File // the last segment; nil when it has to be looked for
	size  int64    // of file, up to its last whole line
	dirty bool     // written since the last sync
	seq   uint64   // of the last line
	torn  int64    // bytes cut from the end that no event tells of yet
	buf   []byte   // the lines of the last group, kept for its room
}

const lockName = "lock"

// acquire takes the lock of all processes and catches up with what they appended.
func (s *store) acquire() (release func(), err error) {
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	release = func() { _ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN) }
	if err := s.catchUp(); err != nil {
		err = errors.Join(err, s.leave()) // the next one looks afresh
		release()
		return nil, err
	}
	return release, nil
}

func (s *store) takeLock() error {
	for range 10 {
		if s.lock == nil {
			f, err := s.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
			if err != nil {
				return err
			}
			s.lock = f
		}
		if err := flock(s.lock, unix.LOCK_EX); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(s.lock.Fd()), &st); err == nil && st.Nlink > 0 {
			return nil
		}
		s.lock.Close() // removed: others lock the file that took its place
		s.lock = nil
	}
	return errors.New("the lock file is removed again and again")
}

// flock is flock(2), which a signal may interrupt.
func flock(f *os.File, how int) error {
	err := error(unix.EINTR)
	for range 1000 {
		if err = unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			break
		}
	}
	return os.NewSyscallError("flock", err)
}

// catchUp makes file, size and seq true again. The caller has the lock.
func (s *store) catchUp() error {
	if s.file == nil {
		return s.openLast()
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch {
	case st.Nlink == 0, st.Mode&0o777 == sealed:
		if err := s.leave(); err != nil {
			return err
		}
		return s.openLast()
	case st.Size != s.size:
		return s.readTail(st.Size)
	}
	return nil
}

// openLast opens the last segment, or makes the next when that is sealed.
func (s *store) openLast() error {
	numbers, err := segments(s.root)
	if err != nil {
		return err
	}
	name, flags := segmentName(1), os.O_CREATE|os.O_EXCL
	if len(numbers) > 0 {
		last := numbers[len(numbers)-1]
		info, err := s.root.Lstat(segmentName(last))
		switch {
		case err != nil:
			return err
		case info.Mode().Perm() == sealed:
			name = segmentName(last + 1)
		default:
			name, flags = segmentName(last), 0
		}
	}
	s.file, err = s.root.OpenFile(name, flags|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	if err := syncDir(s.root); err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	return s.readTail(info.Size())
}

// readTail learns size and seq from the last segment and cuts what follows its last whole line.
func (s *store) readTail(size int64) error {
	end, seq, err := tail(s.file, size)
	if err == nil && seq == 0 {
		seq, err = s.seqBefore()
	}
	if err != nil {
		return err
	}
	if seq < s.seq { // somebody took lines away; to go on would give their numbers twice
		return fmt.Errorf("the log ends at event %d, and %d was written", seq, s.seq)
	}
	if end < size {
		if err := s.file.Truncate(end); err != nil {
			return err
		}
		s.torn += size - end
		s.dirty = true
	}
	s.size, s.seq = end, seq
	return nil
}

// seqBefore returns the last sequence number of all segments, for a last one that has no line yet.
func (s *store) seqBefore() (uint64, error) {
	numbers, err := segments(s.root)
	for i := len(numbers) - 1; i >= 0 && err == nil; i-- {
		var seq uint64
		if seq, err = lastSeq(s.root, segmentName(numbers[i])); seq > 0 {
			return seq, nil
		}
	}
	return 0, err
}

func lastSeq(root *os.Root, name string) (uint64, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	_, seq, err := tail(f, info.Size())
	return seq, err
}

// write appends whole lines, all or nothing. The caller has the lock.
func (s *store) write(lines []byte) error {
	if s.size > 0 && s.size+int64(len(lines)) > s.limit {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	if _, err := s.file.WriteAt(lines, s.size); err != nil {
		if cut := s.file.Truncate(s.size); cut != nil {
			err = errors.Join(err, cut) // size is off now, so that the next one looks at the tail
		}
		return err
	}
	s.size += int64(len(lines))
	s.dirty = true
	return nil
}

// rotate seals the last segment and makes the next. Whoever dies between leaves a sealed one, which openLast knows.
func (s *store) rotate() error {
	if err := s.file.Chmod(sealed); err != nil {
		return err
	}
	if err := s.leave(); err != nil {
		return err
	}
	return s.openLast()
}

// leave syncs and closes the last segment.
func (s *store) leave() error {
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.file.Sync(), s.file.Close())
	s.file, s.dirty = nil, false
	return err
}

// close lets go of the directory.
func (s *store) close() error {
	err := s.leave()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return errors.Join(err, s.root.Close())
}
