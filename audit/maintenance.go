package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
)

// packEvery is how many Options.Sync pass from one look at complete segments to the next, unless there is a new one.
const packEvery = 60

// every calls f every Options.Sync until close.
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

// syncAndCheck syncs the log and checks its files as append does.
func (s *store) syncAndCheck() {
	err := s.sync()
	if err == nil {
		_, err = s.append(nil)
	}
	if err != nil {
		s.notify(report{Err: err.Error()})
	}
}

// sealAndReport seals the lines on disk. It runs on its own goroutine because hashing must not delay a sync.
func (s *store) sealAndReport(closing bool) {
	err := s.seal(closing)
	if errors.Is(err, fs.ErrNotExist) { // the directory is gone, which is reported elsewhere
		return
	}
	if why := fmt.Sprint(err); err != nil && why != s.sealing {
		s.sealing = why
		s.note(OutcomeKept, why)
	}
}

// packAndExpire compresses and removes complete segments. It runs on its own goroutine because compressing must not delay
// a sync.
func (s *store) packAndExpire() {
	s.mu.Lock()
	number := s.number
	s.mu.Unlock()
	if number == s.packed && time.Since(s.looked) < packEvery*s.opts.Sync {
		return
	}
	err := s.packAll()
	if err == nil {
		err = s.expire()
	}
	if err == nil {
		s.packed, s.looked = number, time.Now()
	}
	// the directory is gone or the log is closed; both are reported elsewhere
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, errStopped)
	if why := fmt.Sprint(err); err != nil && !gone && why != s.packing {
		s.packing = why
		s.note(OutcomeKept, why)
	}
}

// check runs the checks that need the lock when there is nothing to append.
func (s *store) check() error {
	s.finishCalls()
	s.tellRest(time.Now(), false)
	s.measure()
	s.setReserve()
	return s.watch()
}

// sync syncs the last segment to the disk, then the mark. It does not hold mu during fsync(2), so that appends
// continue.
func (s *store) sync() error {
	s.mu.Lock()
	file, dirty, seq, synced := s.file, s.dirty, s.seq, place{s.number, s.size}
	s.dirty = false
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := ignoreClosed(file.Sync()); err != nil { // rotate and close sync a segment before they close it
		return fmt.Errorf("sync log: %w", err)
	}
	marks, err := s.markSynced(seq, synced)
	if err == nil {
		err = ignoreClosed(marks.Sync())
	}
	if err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

// markSynced records in the mark that the events up to seq are on disk, at a place.
func (s *store) markSynced(seq uint64, at place) (markFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.segment >= s.synced.segment {
		s.synced = at
	}
	release, err := s.acquire()
	if err != nil {
		return markFile{}, err
	}
	defer release()
	s.mark.synced, s.mark.calls = max(s.mark.synced, seq), s.oldestCall()
	if s.mark.reserved < s.seq+reserveStep/2 { // early, so that append does not have to sync the mark
		return s.marks, s.reserve(s.seq)
	}
	return s.marks, s.marks.write(s.mark)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// note is remark for callers that do not hold mu.
func (s *store) note(outcome, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remark(outcome, detail)
}

// directory opens the log's directory by name, lists its segments, and returns the number of the segment being
// written.
func (s *store) directory() (root *os.Root, all []segment.Segment, number int, err error) {
	s.mu.Lock()
	root, err = os.OpenRoot(s.dir)
	number = s.number
	s.mu.Unlock()
	if err != nil {
		return nil, nil, 0, err
	}
	if all, err = segment.List(root); err != nil {
		root.Close()
	}
	return root, all, number, err
}

// packAll compresses the complete segments. It completes work that was interrupted.
func (s *store) packAll() error {
	root, all, number, err := s.directory()
	if err != nil {
		return err
	}
	defer root.Close()
	for _, seg := range all {
		if seg.Number >= number {
			break
		}
		if seg.Packed { // a packed segment has its name only when it is complete
			if err := remove(root, segment.Name(seg.Number)); err != nil {
				return err
			}
			continue
		}
		if err := pack(root, seg, s.stop); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compress %s: %w", seg.Name(), err)
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

// expire removes the oldest segments while they are older than KeepAge or the log is larger than KeepBytes. It never
// removes the last segment.
func (s *store) expire() error {
	root, all, number, err := s.directory()
	if err != nil {
		return err
	}
	defer root.Close()
	type file struct {
		segment.Segment
		os.FileInfo
	}
	if hashed, err := treeNumbers(root); err == nil && len(hashed) > 0 { // the lines before the newest one are in the tree
		number = min(number, hashed[len(hashed)-1])
	}
	var files []file
	total := int64(0)
	for _, seg := range all {
		info, err := root.Lstat(seg.Name())
		if err != nil { // pack replaced it meanwhile
			continue
		}
		files = append(files, file{seg, info})
		total += info.Size()
	}
	why, keep := "", 0
	for keep < len(files) && files[keep].Number < number {
		f := files[keep]
		if s.opts.KeepAge > 0 && time.Since(f.ModTime()) > s.opts.KeepAge {
			why = "older than " + s.opts.KeepAge.String()
		} else if s.opts.KeepBytes > 0 && total > s.opts.KeepBytes {
			why = fmt.Sprintf("the log is larger than %d bytes", s.opts.KeepBytes)
		} else {
			break
		}
		total -= f.Size()
		keep++
	}
	if keep == 0 {
		return nil
	}
	s.note(OutcomeRemoved, fmt.Sprintf(segment.RemovedFormat+": %s", files[0].Number, files[keep-1].Number, why))
	if _, err := s.append(nil); err != nil { // recorded before it is done
		return err
	}
	s.mu.Lock()
	held := s.file
	s.mu.Unlock()
	if held != nil { // the disk must not keep the removal and lose the record
		if err := ignoreClosed(held.Sync()); err != nil {
			return err
		}
	}
	for _, f := range files[:keep] {
		if err := s.discard(root, f.Segment); err != nil {
			return err
		}
	}
	return nil
}

// discard removes a segment and its entry in known, so that watch does not report it.
func (s *store) discard(root *os.Root, seg segment.Segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.DeleteFunc(s.known, func(n int) bool { return n == seg.Number })
	plain := segment.Name(seg.Number)
	return errors.Join(remove(root, seg.Name()), remove(root, plain), remove(root, plain+damagedSuffix),
		remove(root, segment.TreeFile(seg.Number)))
}

// watch records when another program has removed a complete segment. The caller holds the lock.
func (s *store) watch() error {
	all, err := segment.List(s.root)
	if err != nil {
		return err
	}
	now := make([]int, len(all))
	for i, seg := range all {
		now[i] = seg.Number
	}
	for _, n := range s.known {
		// Another process that has the log open may have expired the oldest segments.
		if !slices.Contains(now, n) && n != s.number && (len(now) > 0 && n > now[0] || s.marks.alone()) {
			s.remark(OutcomeLost, fmt.Sprintf("%s was removed or renamed", segment.Name(n)))
		}
	}
	s.known = now
	return nil
}

// The disk is low when less than 1/lowPart of it and less than lowBytes are free.
const (
	lowPart  = 20
	lowBytes = 1 << 30
)

// measure records when the disk becomes low, once until it recovers.
func (s *store) measure() {
	var st unix.Statfs_t
	if unix.Fstatfs(int(s.at.Fd()), &st) != nil {
		return
	}
	free, size := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	limit := lowLimit(size)
	switch {
	case free < limit && !s.low:
		s.low = true
		s.remark(OutcomeLow, fmt.Sprintf("%d KiB of %d are free on the disk of the log: free some, or keep less of the log", free>>10, size>>10))
	case free > limit+limit/4:
		s.low = false
	}
}

// LowSpace reports whether a disk of size bytes with free ones left is nearly full: the log records [OutcomeLow].
func LowSpace(free, size int64) bool { return free < lowLimit(size) }

func lowLimit(size int64) int64 { return min(size/lowPart, lowBytes) }

// Reserve is a file of a log that reserves disk space. On a full disk, the log uses that space for denials and the ends of
// calls.
const Reserve = "reserve"

// setReserve creates the reserve if it is missing and the disk has room for twice its size. The reserve is 1% of the
// disk, at most 16 MiB.
func (s *store) setReserve() {
	if _, err := s.root.Lstat(Reserve); err == nil {
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
	f, err := s.root.OpenFile(Reserve, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
	if err != nil {
		_ = s.root.Remove(Reserve)
		return
	}
	s.setFull(nil)
}

// useReserve removes the reserve if err is a full disk or quota. It reports whether it freed space.
func (s *store) useReserve(err error) bool {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || s.root.Remove(Reserve) != nil {
		return false
	}
	s.measure()
	s.setFull(fmt.Errorf("only the reserve of the log is left: %w", err))
	return true
}

// setFull reports to the Log that only the reserve is left (err) or that the disk has space again (nil).
func (s *store) setFull(err error) {
	if (err == nil) == (s.full == nil) {
		return
	}
	s.full = err
	r := report{Full: new(string)}
	if err != nil {
		*r.Full = err.Error()
	}
	s.notify(r)
}
