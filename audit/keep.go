package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// every calls f each time that the log is synced, until close.
func (s *store) every(f func()) {
	tick := time.NewTicker(s.opts.Sync)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			f()
		}
	}
}

// keepHouse syncs the log, and looks at its files as an append does.
func (s *store) keepHouse() {
	err := s.sync()
	if err == nil {
		_, err = s.append(nil)
	}
	if err != nil {
		s.tell(report{Err: err.Error()})
	}
}

// keepSmall packs and removes complete segments. It may take long, and delays no sync.
func (s *store) keepSmall() {
	err := s.packAll()
	if err == nil {
		err = s.expire()
	}
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, errStopped) // the directory, or the log: told elsewhere
	if why := fmt.Sprint(err); err != nil && !gone && why != s.packing {
		s.packing = why
		s.note(OutcomeKept, why)
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

// note is remark for other goroutines than the one that appends.
func (s *store) note(outcome, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remark(outcome, detail)
}

// directory opens the directory of the log as it is now, lists its segments, and
// returns the number of the one that is written.
func (s *store) directory() (root *os.Root, all []segment, number int, err error) {
	s.mu.Lock()
	root, err = os.OpenRoot(s.dir)
	number = s.number
	s.mu.Unlock()
	if err != nil {
		return nil, nil, 0, err
	}
	if all, err = segments(root); err != nil {
		root.Close()
	}
	return root, all, number, err
}

// packAll packs the segments that are complete. What was left half done is done again.
func (s *store) packAll() error {
	root, all, number, err := s.directory()
	if err != nil {
		return err
	}
	defer root.Close()
	for _, seg := range all {
		if seg.number >= number {
			break
		}
		if seg.packed { // it has its name: what it was made from is not needed
			if err := remove(root, segmentName(seg.number)); err != nil {
				return err
			}
			continue
		}
		if err := pack(root, seg, s.stop); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compress %s: %w", seg.name(), err)
		}
	}
	return nil
}

func remove(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// expire removes the oldest segments while they are too old, or all together too large. The last one stays.
func (s *store) expire() error {
	root, all, number, err := s.directory()
	if err != nil {
		return err
	}
	defer root.Close()
	type file struct {
		segment
		os.FileInfo
	}
	var files []file
	total := int64(0)
	for _, seg := range all {
		info, err := root.Lstat(seg.name())
		if err != nil { // packed at the same time
			continue
		}
		files = append(files, file{seg, info})
		total += info.Size()
	}
	first, last, why := 0, 0, ""
	for _, f := range files {
		switch {
		case f.number >= number:
		case s.opts.KeepAge > 0 && time.Since(f.ModTime()) > s.opts.KeepAge:
			why = "older than " + s.opts.KeepAge.String()
		case s.opts.KeepBytes > 0 && total > s.opts.KeepBytes:
			why = fmt.Sprintf("the log is larger than %d bytes", s.opts.KeepBytes)
		default:
			number = f.number // what is younger stays
		}
		if f.number >= number {
			break
		}
		if last, err = f.number, s.discard(root, f.segment); err != nil {
			return err
		}
		total -= f.Size()
		if first == 0 {
			first = f.number
		}
	}
	if first > 0 {
		s.note(OutcomeRemoved, fmt.Sprintf("segments %d to %d: %s", first, last, why))
	}
	return nil
}

// discard removes a segment, so that watch does not miss it.
func (s *store) discard(root *os.Root, seg segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.DeleteFunc(s.known, func(n int) bool { return n == seg.number })
	return errors.Join(remove(root, seg.name()), remove(root, segmentName(seg.number)), remove(root, segmentName(seg.number)+damagedSuffix))
}

// watch records that a complete segment was removed by somebody else. The caller has the lock.
func (s *store) watch() error {
	all, err := segments(s.root)
	if err != nil {
		return err
	}
	now := make([]int, len(all))
	for i, seg := range all {
		now[i] = seg.number
	}
	for _, n := range s.known {
		// Another process that has the log open may have removed the oldest ones.
		if !slices.Contains(now, n) && n != s.number && (len(now) > 0 && n > now[0] || s.marks.alone()) {
			s.remark(OutcomeLost, fmt.Sprintf("%s was removed or renamed", segmentName(n)))
		}
	}
	s.known = now
	return nil
}

// The disk is low when less is free than a twentieth of it, and than a gibibyte.
const (
	lowPart  = 20
	lowBytes = 1 << 30
)

// measure records when the disk runs low, once until there is more room.
func (s *store) measure() {
	var st unix.Statfs_t
	if unix.Fstatfs(int(s.at.Fd()), &st) != nil {
		return
	}
	free, size := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	limit := min(size/lowPart, lowBytes)
	switch {
	case free < limit && !s.low:
		s.low = true
		s.remark(OutcomeLow, fmt.Sprintf("%d KiB of %d are free on the disk of the log: free some, or keep less of the log", free>>10, size>>10))
	case free > limit+limit/4:
		s.low = false
	}
}

// reserveName is a file that keeps room on the disk for what must be recorded when the disk is full: denials, and the
// ends of calls.
const reserveName = "reserve"

// setReserve makes the reserve, a hundredth of the disk and at most 16 MiB, when it is missing and there is room for it
// twice.
func (s *store) setReserve() {
	if _, err := s.root.Lstat(reserveName); err == nil {
		s.setFull(nil)
		return
	}
	var st unix.Statfs_t
	if unix.Fstatfs(int(s.at.Fd()), &st) != nil {
		return
	}
	size := min(int64(st.Blocks)*st.Bsize/100, 16<<20)
	if size == 0 || int64(st.Bavail)*st.Bsize < 2*size {
		return
	}
	f, err := s.root.OpenFile(reserveName, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
	if err != nil {
		_ = s.root.Remove(reserveName)
		return
	}
	s.setFull(nil)
}

// useReserve gives the reserve's room to the log, and reports whether there was one.
func (s *store) useReserve(err error) bool {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || s.root.Remove(reserveName) != nil {
		return false
	}
	s.measure()
	s.setFull(fmt.Errorf("only the reserve of the log is left: %w", err))
	return true
}

// setFull has the log refuse what has not happened yet, or no more.
func (s *store) setFull(err error) {
	if (err == nil) == (s.full == nil) {
		return
	}
	s.full = err
	r := report{Full: new(string)}
	if err != nil {
		*r.Full = err.Error()
	}
	s.tell(r)
}
