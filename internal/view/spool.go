package view

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/spooled"
	"github.com/scopefs/scopefs/scope"
)

// spools are the daemon's ends of the spools of views: see spooled.Writer.
type spools struct {
	mu   sync.Mutex
	used map[string]bool // the files of views that this daemon serves
	left chan struct{}   // holds a value when the file of a view that has ended is left: see RecoverSpools
}

// use notes that a view of this daemon has the file. The caller holds mu.
func (all *spools) use(name string) {
	if all.used == nil {
		all.used = map[string]bool{}
	}
	all.used[name] = true
}

// spool is the file to which one view process appends, and from which the daemon appends
// to the log.
type spool struct {
	host  *Host
	agent scope.ID
	of    Agent // nil: of a dead daemon's view
	file  *os.File

	unread chan struct{} // of one element; wakes watch. Nil: nothing does

	// mu is held while events are appended: only requests that need these events in the log wait for it.
	mu    sync.Mutex
	read  int64 // what is before it, is in the log
	doubt bool  // the log may have events after read as well: a process has ended, or the disk did not answer, while they were appended
}

// errSpool is the error of a spool with content that no view writes.
var errSpool = errors.New("the spool of the view is damaged")

const (
	// maxSpoolFile is more than a view writes between two resets: spooled.Alone, and the
	// event that reached it.
	maxSpoolFile = spooled.Alone + spooled.Max
	// spoolRoom is the part of an agent's budget below which its view waits for each
	// event, as without a spool: lines of the log are longer than events of a spool.
	spoolRoom = 8 * spooled.Max
	// spoolSlack is how far the clock may have been set back between an event and its
	// line, for the line to be found.
	spoolSlack = 5 * time.Second
	// spoolRetry is the time between two attempts to append what is left.
	spoolRetry = 100 * time.Millisecond
)

// spoolDir returns the directory of spools. There are none on a disk, which could keep a
// view waiting, and none for one command, whose directory is removed with it.
func (h *Host) spoolDir() (dir string, ok bool) {
	var st unix.Statfs_t
	ok = !h.Private && unix.Statfs(h.Paths.Run, &st) == nil && st.Type == unix.TMPFS_MAGIC
	return filepath.Join(h.Paths.Run, "spool"), ok
}

// openSpool makes a spool for a view that records allowed operations. theirs is the view's
// end, which can only append; its flock(2) holds until the process is gone. Both are nil if
// the view is to wait for each event.
func (v *View) openSpool() (s *spool, theirs *os.File) {
	dir, ok := v.host.spoolDir()
	if !ok || v.def.View.Record == scope.RecordDenials || !v.of.Spools() {
		return nil, nil
	}
	all := &v.host.spools
	all.mu.Lock() // RecoverSpools must not find the file before it is used
	defer all.mu.Unlock()
	err := os.MkdirAll(dir, 0o700)
	var ours *os.File
	if err == nil {
		ours, err = os.CreateTemp(dir, string(v.def.Name)+".*") // mode 0600
	}
	if err == nil {
		theirs, err = os.OpenFile(ours.Name(), os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	}
	if err == nil {
		err = unix.Flock(int(theirs.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	}
	if err != nil {
		v.host.Logger.Warn("the view waits for the log with each event that it records", "agent", v.def.Name, "err", err)
		for _, f := range []*os.File{ours, theirs} {
			if f != nil {
				f.Close()
			}
		}
		return nil, nil
	}
	all.use(ours.Name())
	return &spool{host: v.host, agent: v.def.Name, of: v.of, file: ours, unread: make(chan struct{}, 1)}, theirs
}

// Drain appends what the view has recorded so far to the log.
func (v *View) Drain() error {
	if s := v.spool.Load(); s != nil {
		return s.drain()
	}
	return nil
}

// drain appends the events that the view has written so far to the log. An error that is
// errSpool says that the view writes nonsense; with any other the events stay in the spool.
func (s *spool) drain() error { return s.take(false) }

// watch drains the spool of a view that may have stopped before it requested that: after each check that finds something,
// until ctx ends. It returns errSpool if the view writes nonsense.
func (s *spool) watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.unread:
		}
		if err := s.drain(); errors.Is(err, errSpool) {
			return err
		}
	}
}

// check wakes watch if the view has written something. It does not block.
func (s *spool) check() {
	if s == nil || !s.mu.TryLock() { // it is being drained
		return
	}
	info, err := s.file.Stat()
	unread := err == nil && info.Size() != s.read
	s.mu.Unlock()
	if unread {
		select {
		case s.unread <- struct{}{}:
		default:
		}
	}
}

// take is drain. With reset it also empties the spool; the view writes nothing meanwhile.
func (s *spool) take(reset bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.append()
	if err == nil && reset {
		if err = s.file.Truncate(0); err == nil {
			s.read = 0
		}
	}
	return err
}

// append is drain. The caller holds mu.
func (s *spool) append() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	written := min(info.Size(), maxSpoolFile)
	switch {
	case info.Size() == s.read:
		return nil
	case written < s.read:
		return fmt.Errorf("%w: it was truncated", errSpool)
	}
	if err := s.host.Log.Err(); s.doubt && err != nil {
		return err // the log's process may still be writing them
	}
	text := make([]byte, written-s.read)
	if _, err := s.file.ReadAt(text, s.read); err != nil {
		return err
	}
	events, size, damaged := spooled.Read(text)
	for i := range events {
		events[i].Agent = string(s.agent)
	}
	all := events
	if s.doubt {
		events = s.missing(events)
	}
	if err := s.host.Log.AppendAll(events); err != nil {
		s.doubt = true
		return err
	}
	s.doubt = false
	s.read += int64(size)
	if s.of != nil {
		s.of.Spend(all)
	}
	if damaged == nil && written < info.Size() {
		damaged = fmt.Errorf("it has %d bytes", info.Size())
	}
	if damaged != nil {
		return fmt.Errorf("%w: %w", errSpool, damaged)
	}
	return nil
}

// missing returns the events that are not in the log.
func (s *spool) missing(events []audit.Event) []audit.Event {
	if len(events) == 0 {
		return nil
	}
	found := map[int64]bool{}
	filter := audit.Filter{Agent: string(s.agent), Since: events[0].Decided.Add(-spoolSlack), Rising: true}
	for e, err := range audit.Read(context.Background(), s.host.Paths.Audit(), filter, false) {
		if err == nil && !e.Decided.IsZero() {
			found[e.Decided.UnixNano()] = true
		}
	}
	return slices.DeleteFunc(events, func(e audit.Event) bool { return found[e.Decided.UnixNano()] })
}

// room reports whether the view may use its spool.
func (s *spool) room() bool {
	return s != nil && s.host.Log.Err() == nil && s.of.Spend(nil) >= spoolRoom
}

// end appends what is left and removes the file. If the process is not gone, or the log
// fails, RecoverSpools does that.
func (s *spool) end(gone bool) {
	err := s.drain()
	if damaged := errors.Is(err, errSpool); gone && (err == nil || damaged) {
		if damaged {
			s.host.Logger.Warn("a part of what the view has recorded cannot be read", "agent", s.agent, "err", err)
		}
		os.Remove(s.file.Name())
	}
	s.file.Close()
	all := &s.host.spools
	all.mu.Lock()
	delete(all.used, s.file.Name())
	all.mu.Unlock()
	select {
	case s.host.spoolsLeft() <- struct{}{}:
	default:
	}
}

func (h *Host) spoolsLeft() chan struct{} {
	h.spools.mu.Lock()
	defer h.spools.mu.Unlock()
	if h.spools.left == nil {
		h.spools.left = make(chan struct{}, 1)
	}
	return h.spools.left
}

// RecoverSpools appends to the log what is in the spools of views that have ended, first of
// those of a daemon that was killed, until ctx ends. wait returns after that.
func (h *Host) RecoverSpools(ctx context.Context) (wait func()) {
	left := h.recoverSpools()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var again <-chan time.Time
			if left {
				again = time.After(spoolRetry)
			}
			select {
			case <-ctx.Done():
				return
			case <-again:
			case <-h.spoolsLeft():
			}
			left = h.recoverSpools()
		}
	}()
	return func() { <-ended }
}

// recoverSpools reports whether a spool is left, whose view still runs or which the log does
// not take.
func (h *Host) recoverSpools() (left bool) {
	dir, _ := h.spoolDir()
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		name := filepath.Join(dir, f.Name())
		h.spools.mu.Lock()
		used := h.spools.used[name]
		h.spools.mu.Unlock()
		if !used {
			left = !h.recoverSpool(name) || left
		}
	}
	return left
}

// recoverSpool reports whether nothing is left of a spool.
func (h *Host) recoverSpool(name string) bool {
	id, _, _ := strings.Cut(filepath.Base(name), ".")
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	old := &spool{host: h, agent: scope.ID(id), file: f, doubt: true}
	if err := old.drain(); errors.Is(err, errSpool) {
		h.Logger.Warn("a part of what a view has recorded cannot be read", "agent", id, "err", err)
	} else if err != nil {
		return false
	}
	return os.Remove(name) == nil
}
