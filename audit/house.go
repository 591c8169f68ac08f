package audit

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// keepHouse does what is not done for an event, until close.
func (s *store) keepHouse() {
	tick := time.NewTicker(s.opts.Sync)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		err := s.sync()
		if err == nil {
			_, err = s.append(nil) // looks at the files
		}
		if err != nil {
			s.tell(report{Err: err.Error()})
		}
	}
}

// look does what is done with the lock, though there is nothing to append.
func (s *store) look() error {
	s.finishCalls()
	s.measure()
	s.setReserve()
	return s.watch()
}

// sync makes what was written last beyond a power loss, and then the mark that says so. Others write meanwhile.
func (s *store) sync() error {
	s.mu.Lock()
	file, dirty, seq := s.file, s.dirty, s.seq
	s.dirty = false
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := unlessClosed(file.Sync()); err != nil { // a segment is synced before it is closed
		return fmt.Errorf("sync log: %w", err)
	}
	marks, err := s.markSynced(seq)
	if err == nil {
		err = unlessClosed(marks.Sync())
	}
	if err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

// markSynced notes that the events up to seq are on disk.
func (s *store) markSynced(seq uint64) (markFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	release, err := s.acquire()
	if err != nil {
		return markFile{}, err
	}
	defer release()
	s.mark.synced, s.mark.calls = max(s.mark.synced, seq), s.oldestCall()
	if s.mark.reserved < s.seq+reserveStep/2 { // soon enough that no append has to
		return s.marks, s.reserve(s.seq)
	}
	return s.marks, s.marks.write(s.mark)
}

func unlessClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
