package history

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// reserve is a file whose blocks removals get on a full file system: a removal moves the file into the history, and takes little.
type reserve struct {
	mu    sync.Mutex
	file  beneath.File
	usage quota.Usage
	size  int64 // bytes that the file has
}

const (
	maxReserve   = 1 << 20
	reservePart  = 0.01    // of the file system, and of a limit of the agent
	reservePiece = 8 << 10 // is freed at once: another process may take what the removal leaves
	maxPieces    = 8       // for one removal
)

// fill gives the reserve its size, if the file system has room.
func (s *Store) fill() {
	r := &s.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	st, err := r.file.StatFS()
	if err != nil {
		return
	}
	part := float64(st.Blocks) * float64(st.Bsize)
	if bytes, _ := s.opt.Quota.Limits(); bytes > 0 {
		part = min(part, float64(bytes))
	}
	want := int64(min(maxReserve, part*reservePart))
	if r.size < want && !s.scarce(freeShare) {
		_ = r.file.Allocate(0, 0, want) // without it a removal on a full file system is refused
	}
	r.measure(s.opt.Quota)
}

// measure notes what the file system has allocated. The caller holds mu.
func (r *reserve) measure(counter *quota.Counter) {
	if st, err := r.file.Stat(); err == nil {
		r.size = min(int64(st.Size), int64(st.Blocks)*512)
	}
	counter.Grown(r.file, &r.usage)
}

// free frees a piece of the reserve. It returns false if nothing is left.
func (s *Store) free() bool {
	r := &s.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size == 0 || r.file.Truncate(max(0, r.size-reservePiece)) != nil {
		return false
	}
	if r.measure(s.opt.Quota); r.size < maxPieces*reservePiece {
		s.crowded(unix.ENOSPC)
	}
	return true
}

// openReserve opens the reserve, and fills it.
func (s *Store) openReserve() (err error) {
	if s.reserve.file, err = journal.OpenOrCreate(s.top, "reserve"); err == nil {
		s.fill()
	}
	return err
}

// WithRoom calls do, which removes a name, and again with pieces of the reserve while the file system has no room for what the history
// writes.
func (s *Store) WithRoom(do func() error) error {
	err := do()
	for range maxPieces { // more do not help where inodes are missing
		if s == nil || !full(err) || !s.free() {
			break
		}
		err = do()
	}
	return err
}
