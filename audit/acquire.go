package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
)

// openDir opens the log directory and creates it if it does not exist.
func (s *store) openDir() (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if s.root, err = os.OpenRoot(s.dir); err != nil {
		return err
	}
	if s.at, err = s.root.Open("."); err == nil {
		s.boot = bootOf(s.at)
	}
	return err
}

// acquire takes the lock file's flock(2), then updates the store's state from the files: other processes may have
// appended to them, and other programs may have changed them.
func (s *store) acquire() (release func(), err error) {
	if err := s.sameDir(); err != nil {
		return nil, err
	}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	release = func() {
		if s.lock != nil {
			_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
		}
	}
	err = s.readMark()
	if err == nil {
		err = s.catchUp()
	}
	if err != nil {
		err = errors.Join(err, s.closeSegment()) // the next acquire opens the last segment again
		release()
		return nil, err
	}
	return release, nil
}

// sameDir reopens the directory if its name refers to another directory or to none.
func (s *store) sameDir() error {
	if s.at == nil { // it could not be opened when its name last changed
		return errors.Join(s.closeFiles(), s.openDir())
	}
	var held, named unix.Stat_t
	if err := unix.Fstat(int(s.at.Fd()), &held); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	err := unix.Stat(s.dir, &named)
	if err == nil && held.Dev == named.Dev && held.Ino == named.Ino {
		return nil
	}
	if err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "stat", Path: s.dir, Err: err}
	}
	if s.file != nil {
		if m, ok := s.marks.read(); ok {
			s.seq, s.mark = max(s.seq, m.last), m
		}
		s.known = nil
		s.mark.last = 0 // the other directory may hold fewer events
		s.remark(OutcomeLost, fmt.Sprintf("the directory was moved or removed with events up to %d", s.seq))
	}
	if err := s.closeFiles(); err != nil {
		return err
	}
	return s.openDir()
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
		if err := segment.Lock(s.lock, unix.LOCK_EX); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(s.lock.Fd()), &st); err == nil && st.Nlink > 0 {
			return nil
		}
		s.lock.Close() // removed: other processes lock its replacement
		s.lock = nil
	}
	return errors.New("the lock file is removed again and again: stop the program that removes it")
}

// readMark reads mark from its file. If the file was removed or overwritten, readMark rewrites it from this process's
// state.
func (s *store) readMark() error {
	if s.marks.File != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(s.marks.Fd()), &st); err != nil || st.Nlink == 0 {
			s.marks.Close()
			s.marks.File = nil
		}
	}
	if s.marks.File == nil {
		f, err := openMark(s.root)
		if err != nil {
			return err
		}
		s.marks = f
	}
	m, ok := s.marks.read()
	switch {
	case ok:
		if !s.marked {
			s.marked, s.found = true, m
		}
		s.mark = m
	case s.seq > 0:
		return s.reserve(s.seq)
	}
	return nil
}

// catchUp updates file, size and seq from the directory. The caller holds the lock.
func (s *store) catchUp() error {
	if s.file == nil {
		return s.openLast()
	}
	var held, named unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &held); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	err := unix.Fstatat(int(s.at.Fd()), segment.Name(s.number), &named, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case held.Mode&0o777 == sealed: // another process has created the next segment
		if err := s.closeSegment(); err != nil {
			return err
		}
		return s.openLast()
	case held.Nlink == 0:
		return s.lost("removed")
	case err != nil:
		return s.lost("renamed")
	case held.Dev != named.Dev || held.Ino != named.Ino:
		return s.lost("replaced")
	case held.Size < s.size:
		return s.lost("truncated")
	case held.Size != s.size:
		return s.readTail(held.Size)
	}
	return nil
}

// lost records that events of the last segment may be missing. It creates a new segment and continues with numbers
// that were never assigned.
func (s *store) lost(how string) error {
	s.seq = max(s.seq, s.mark.last)
	s.remark(OutcomeLost, fmt.Sprintf("%s was %s: events %d to %d may be missing", segment.Name(s.number), how, s.first, s.seq))
	s.known = nil            // watch must not report the same segment again
	_ = s.file.Chmod(sealed) // so that other processes stop appending to it
	if err := s.closeSegment(); err != nil {
		return err
	}
	all, err := segment.List(s.root)
	if err != nil {
		return err
	}
	return s.create(max(s.number, last(all)) + 1)
}

// openLast opens the last segment. If that is sealed, it creates the next one.
func (s *store) openLast() error {
	all, err := segment.List(s.root)
	if err != nil {
		return err
	}
	n := last(all)
	if n > 0 {
		err = s.open(all[len(all)-1])
	}
	if err == nil && s.file == nil { // every segment is sealed
		var seq uint64
		if seq, err = seqBefore(s.root, n+1); err == nil {
			seq = s.compare(seq)
			s.seq = max(s.seq, seq)
			err = s.create(max(s.number, n) + 1)
		}
	}
	return err
}

// open opens a segment for appending. It does nothing if the segment is sealed.
func (s *store) open(seg segment.Segment) error {
	info, err := s.root.Lstat(seg.Name())
	if err != nil || seg.Packed || info.Mode().Perm() == sealed {
		return err
	}
	f, err := s.root.OpenFile(seg.Name(), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	s.file, s.number = f, seg.Number
	if err := s.readTail(info.Size()); err != nil {
		return err
	}
	return s.readHead()
}

// create creates segment n.
func (s *store) create(n int) error {
	f, err := s.root.OpenFile(segment.Name(n), os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	s.file, s.number, s.size, s.first, s.born = f, n, 0, s.seq+1, time.Now()
	return s.at.Sync()
}

// readHead sets born and first from the first line of the last segment.
func (s *store) readHead() error {
	s.first, s.born = s.seq+1, time.Now()
	line := make([]byte, 128) // enough for the number and the time
	n, err := s.file.ReadAt(line, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if seq, at, ok := segment.ParseHead(line[:n]); ok {
		s.first, s.born = seq, at
	}
	return nil
}

// readTail sets size and seq from the last segment. It moves any bytes after the last whole line to another file.
func (s *store) readTail(size int64) error {
	end, seq, err := tail(s.file, size)
	if err == nil && seq == 0 {
		seq, err = seqBefore(s.root, s.number)
	}
	if err != nil {
		return err
	}
	if end < size {
		if s.endLine(end, size, seq+1) {
			end, seq = size+1, seq+1
		} else if err := s.setAside(end, size); err != nil {
			return err
		}
	}
	s.size = end
	if seq = s.compare(seq); seq < s.seq {
		return s.lost("cut short")
	}
	s.seq = seq
	return nil
}

// compare compares found, the last event in the log, with the last event of the mark. It returns the number after
// which the log continues.
func (s *store) compare(found uint64) uint64 {
	m := s.mark
	s.mark.boot = s.boot
	if s.marked && m.closed() && found > m.last && s.marks.alone() {
		s.remark(OutcomeForeign, fmt.Sprintf("events %d to %d are not the log's: they were appended while it was closed", m.last+1, found))
	}
	switch {
	case !s.marked || found >= m.last && (sameBoot(m.boot, s.boot) || m.closed() || !s.marks.alone()):
		return found
	case sameBoot(m.boot, s.boot) || m.closed():
		s.remark(OutcomeLost, fmt.Sprintf("events %d to %d are missing at the end", found+1, m.last))
		return m.last
	case found < m.reserved:
		s.remark(OutcomeUnclean,
			fmt.Sprintf("event %d was known to be on disk, and %d is the last that is; what was appended after it is lost; the next is %d",
				m.synced, found, m.reserved+1))
		return m.reserved
	}
	return found
}

// endLine gives the end of the last segment the newline that it lacks, if it is the event that comes next, and reports whether it is.
func (s *store) endLine(from, to int64, seq uint64) bool {
	line := make([]byte, min(to-from, maxLine))
	n, _ := s.file.ReadAt(line, from)
	if segment.ParseEvent(append(line[:n], '\n')) != seq {
		return false
	}
	if _, err := s.file.WriteAt([]byte("\n"), to); err != nil {
		return false
	}
	s.dirty = true
	s.remark(OutcomeTorn, fmt.Sprintf("the newline at the end of event %d was missing", seq))
	return true
}

const damagedSuffix = ".damaged"

// setAside moves the damaged end of the last segment to a file beside it.
func (s *store) setAside(from, to int64) error {
	name := segment.Name(s.number) + damagedSuffix
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.NewSectionReader(s.file, from, to-from))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := s.file.Truncate(from); err != nil {
		return err
	}
	s.dirty = true
	s.remark(OutcomeTorn, fmt.Sprintf("%d bytes set aside in %s", to-from, name))
	return nil
}
