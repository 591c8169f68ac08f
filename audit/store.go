package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// store is the directory of a log, for one appending process. Other processes append too, so acquire checks the state
// of the last segment against the disk.
type store struct {
	dir    string // absolute
	opts   Options
	notify func(report)

	stop    chan struct{}
	stopped sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	root *os.Root
	at   *os.File // the directory
	lock *os.File
	boot uint64 // bootOf(at)

	marks  markFile // its file is nil until it is opened
	mark   mark
	marked bool // the log had a mark when it was opened
	found  mark // the mark when the log was opened

	file     *os.File // the last segment; nil until it is opened
	number   int      // the number of file
	first    uint64   // the first event of file
	born     time.Time
	size     int64 // size of file, up to its last whole line
	dirty    bool  // written since the last sync
	synced   place // what is known to be on disk, for seal
	seq      uint64
	remarks  []Event // events about the log itself, not yet recorded
	calls    openCalls
	finished bool   // finishCalls has run
	known    []int  // numbers of the segments in the directory
	low      bool   // OutcomeLow was recorded
	full     error  // not nil while the log uses the reserve
	buf      []byte // the lines of the last group; reused

	budgets map[string]*budget // by agent

	packing string // the last error of packAndExpire; used only by its goroutine, like the following two
	packed  int    // the segment that was written when it last succeeded
	looked  time.Time
	sealed  place  // what seal has hashed; used by the goroutine of sealing, and by close after its end
	sealing string // the last error of seal; likewise
}

// report is a message from a store that is not a response to a call.
type report struct {
	Event *Event  `json:"event,omitempty"` // an event that the log recorded about itself
	Err   string  `json:"err,omitempty"`   // why the log fails
	Full  *string `json:"full,omitempty"`  // why only the reserve is left; empty when the disk has space again
}

const lockName = "lock"

// openStore opens the log in dir, and records damaged or missing parts.
func openStore(dir string, opts Options, notify func(report)) (*store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, opts: opts, notify: notify, stop: make(chan struct{}), calls: openCalls{}, budgets: map[string]*budget{}}
	if err := s.openDir(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	if _, err := s.append(nil); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.stopped.Go(func() { s.every(s.syncAndCheck) })
	s.stopped.Go(func() { s.every(s.packAndExpire) })
	s.stopped.Go(func() { s.every(func() { s.sealAndReport(false) }) })
	return s, nil
}

// append appends a group of bodies, one a line, and returns the sequence number of the first. It is the only writer
// of the log: every line passes through it once, in order, whole, under the lock.
func (s *store) append(bodies []byte) (first uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	release, err := s.acquire()
	if err != nil {
		return 0, err
	}
	defer release()
	if bodies == nil {
		if err := s.check(); err != nil {
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
			s.notify(report{Event: &e})
		}
	}
	s.calls.follow(bodies, s.number)
	s.seq, s.remarks = seq, s.remarks[len(remarks):] // write may have added remarks
	s.mark.last, s.mark.calls = seq, s.oldestCall()
	_ = s.marks.write(s.mark) // enough against a crash of this process; sync writes it to the disk
	return first, nil
}

// remark queues an event about the log itself, which append writes before any other event. Its strings are escaped as
// in the log.
func (s *store) remark(outcome, detail string) {
	s.remarks = append(s.remarks, clean(Event{Event: KindAudit, Outcome: outcome, Detail: detail}))
}

// reserve writes to disk that numbers up to last+reserveStep may be assigned, so that they are not assigned again
// after a power loss.
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

// write appends whole lines to the last segment, all or none. The caller holds the lock.
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
			err = errors.Join(err, cut) // the file is now larger than size, so the next acquire reads the tail
		}
		return err
	}
	s.size += int64(len(lines))
	s.dirty = true
	return nil
}

// rotate seals the last segment and creates the next. If the process dies in between, openLast finds a sealed segment
// and creates the next.
func (s *store) rotate() error {
	if err := s.file.Chmod(sealed); err != nil {
		return err
	}
	if err := s.closeSegment(); err != nil {
		return err
	}
	return s.openLast()
}

// closeSegment syncs and closes the last segment.
func (s *store) closeSegment() error {
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.file.Sync(), s.file.Close())
	if err == nil {
		s.synced = place{s.number, s.size}
	}
	s.file, s.dirty = nil, false
	return err
}

// close writes a mark that says that no event is missing, closes the files, and signs the last head.
func (s *store) close() error {
	close(s.stop)
	s.stopped.Wait()
	if s.sync() == nil {
		s.sealAndReport(true) // before the segment is closed: it may have a remark
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellRest(time.Now(), true)
	if len(s.remarks) > 0 {
		s.mu.Unlock()
		_, _ = s.append(nil)
		s.mu.Lock()
	}
	release, err := s.acquire()
	if err != nil {
		return errors.Join(err, s.closeFiles())
	}
	err = s.closeSegment()
	if err == nil && s.marks.alone() {
		s.mark.last, s.mark.synced, s.mark.reserved = s.seq, s.seq, s.seq
		err = errors.Join(s.marks.write(s.mark), s.marks.Sync())
	}
	release()
	s.mu.Unlock()
	s.sealAndReport(true)
	s.mu.Lock()
	return errors.Join(err, s.closeFiles())
}

// closeFiles closes all files.
func (s *store) closeFiles() error {
	err := s.closeSegment()
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
