package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// store is the directory of a log, as one process that appends sees it. What it knows of the last segment is checked
// against the disk by acquire, for others append too.
type store struct {
	dir  string // absolute
	opts Options
	tell func(report)

	stop    chan struct{}
	stopped sync.WaitGroup

	mu   sync.Mutex // guards what follows
	root *os.Root
	at   *os.File // the directory itself
	lock *os.File
	boot uint64 // bootOf(at)

	marks  markFile // its file is nil when it has to be opened
	mark   mark
	marked bool // there was a mark
	found  mark // when the log was opened

	file     *os.File // the last segment; nil when it has to be looked for
	number   int      // of file
	first    uint64   // event of file, or of the next group
	born     time.Time
	size     int64 // of file, up to its last whole line
	dirty    bool  // written since the last sync
	seq      uint64
	remarks  []Event // that the log has yet to record about itself
	calls    openCalls
	finished bool   // calls of earlier processes have an end
	known    []int  // numbers of the segments that are there
	low      bool   // little room is left, and it was told
	full     error  // the disk is, and the reserve is being used
	buf      []byte // the lines of the last group, kept for its room

	packing string // why keepSmall failed last; its own
}

// report is what a store says beside its answers.
type report struct {
	Event *Event  `json:"event,omitempty"` // the log recorded about itself
	Err   string  `json:"err,omitempty"`   // the log fails
	Full  *string `json:"full,omitempty"`  // only the reserve is left, and why; empty: there is room again
}

const lockName = "lock"

// openStore opens the log in dir, and records what it finds missing or damaged.
func openStore(dir string, opts Options, tell func(report)) (*store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, opts: opts, tell: tell, stop: make(chan struct{}), calls: openCalls{}}
	if err := s.openDir(); err != nil {
		return nil, errors.Join(err, s.letGo())
	}
	if _, err := s.append(nil); err != nil {
		return nil, errors.Join(err, s.letGo())
	}
	s.stopped.Go(func() { s.every(s.keepHouse) })
	s.stopped.Go(func() { s.every(s.keepSmall) })
	return s, nil
}

// append appends a group of bodies, one a line, and returns the number of the first. It is the one way into the log:
// every line passes here once, in order, whole, under the lock of all processes.
func (s *store) append(bodies []byte) (first uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	release, err := s.acquire()
	if err != nil {
		return 0, err
	}
	defer release()
	if bodies == nil {
		if err := s.look(); err != nil {
			return 0, err
		}
	}
	lines, seq := s.buf[:0], s.seq
	now := time.Now().UTC()
	remarks := s.remarks
	for _, e := range remarks {
		seq++
		lines = appendBody(appendHead(lines, seq, now), e)
	}
	first = seq + 1
	for body := range bytes.Lines(bodies) {
		seq++
		lines = append(appendHead(lines, seq, now), body...)
	}
	if len(lines) == 0 {
		return 0, nil
	}
	s.buf = lines
	if seq > s.mark.reserved {
		if err := s.reserve(seq); err != nil {
			return 0, err
		}
	}
	if err := s.write(lines); err != nil {
		return 0, err
	}
	for _, e := range remarks {
		if e.Event == KindAudit {
			s.tell(report{Event: &e})
		}
	}
	s.calls.follow(bodies, s.number)
	s.seq, s.remarks = seq, s.remarks[len(remarks):] // writing may have added some
	s.mark.last, s.mark.calls = seq, s.oldestCall()
	_ = s.marks.write(s.mark) // of use while this kernel runs; sync writes it for good
	return first, nil
}

// remark has the log record something about itself, before any other event. The event's strings are as the log holds
// them.
func (s *store) remark(outcome, detail string) {
	s.remarks = append(s.remarks, clean(Event{Event: KindAudit, Outcome: outcome, Detail: detail}))
}

// reserve makes sure that no number up to last and some more is given to other events after a power loss.
func (s *store) reserve(last uint64) error {
	next := s.mark
	next.reserved = last + reserveStep
	if err := s.marks.write(next); err != nil {
		return err
	}
	if err := s.marks.Sync(); err != nil {
		return err
	}
	s.mark = next
	return nil
}

// write appends whole lines to the last segment, all or nothing. The caller has the lock.
func (s *store) write(lines []byte) error {
	full := s.size > 0 && s.size+int64(len(lines)) > s.opts.SegmentBytes
	if full || s.size > 0 && time.Since(s.born) > s.opts.SegmentAge {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	_, err := s.file.WriteAt(lines, s.size)
	if err != nil && s.useReserve(err) {
		_, err = s.file.WriteAt(lines, s.size)
	}
	if err != nil {
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

// close writes a mark that says that nothing is missing, and lets go of the directory.
func (s *store) close() error {
	close(s.stop)
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	release, err := s.acquire()
	if err != nil {
		return errors.Join(err, s.letGo())
	}
	err = s.leave()
	if err == nil && s.marks.alone() {
		s.mark.last, s.mark.synced, s.mark.reserved = s.seq, s.seq, s.seq
		err = errors.Join(s.marks.write(s.mark), s.marks.Sync())
	}
	release()
	return errors.Join(err, s.letGo())
}

// letGo closes all files.
func (s *store) letGo() error {
	err := s.leave()
	for _, f := range []**os.File{&s.marks.File, &s.lock, &s.at} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	if s.root != nil {
		err = errors.Join(err, s.root.Close())
		s.root = nil
	}
	return err
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
