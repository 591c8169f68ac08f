package history

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope/beneath"
)

// links counts the names that files have in the history: a client sees the link count without them. It does not count the only
// name of a file that no client has open, which no client sees. Those of files with other names are in the file links of the
// history, too.
type links struct {
	some atomic.Bool // count is not empty

	mu    sync.RWMutex
	count map[beneath.FileID]uint32
	log   *journal.Log
	quota *quota.Counter
}

// A linkEntry is a count in the file: the inode, the birth time and the change of the count.
const linkEntry = 8 + 8 + 8

func (l *links) open(top beneath.Dir) (err error) {
	l.count = map[beneath.FileID]uint32{}
	l.log, err = journal.OpenLog(top, "links", linkEntry, true, func(entry []byte) bool {
		id := beneath.FileID{Ino: binary.LittleEndian.Uint64(entry), Birth: int64(binary.LittleEndian.Uint64(entry[8:]))}
		l.change(id, int64(binary.LittleEndian.Uint64(entry[16:])))
		return true
	})
	if err != nil {
		return err
	}
	err = l.log.Clear()
	for id, n := range l.count {
		l.append(id, int64(n))
	}
	return err
}

func (l *links) close() { l.log.Close() }

// change changes a count. The caller holds mu.
func (l *links) change(id beneath.FileID, by int64) {
	if n := int64(l.count[id]) + by; n > 0 {
		l.count[id] = uint32(n)
	} else {
		delete(l.count, id)
	}
	l.some.Store(len(l.count) > 0)
}

func (l *links) append(id beneath.FileID, by int64) {
	var b [linkEntry]byte
	binary.LittleEndian.PutUint64(b[:], id.Ino)
	binary.LittleEndian.PutUint64(b[8:], uint64(id.Birth))
	binary.LittleEndian.PutUint64(b[16:], uint64(by))
	_ = l.log.Append(b[:]) // without it clients see the count with this name after a restart
}

// add counts a name in the history. lasting says that the file has other names.
func (l *links) add(id beneath.FileID, lasting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change(id, 1)
	if lasting {
		l.append(id, 1)
	}
}

// remove undoes an add. One that is not in the file does no harm there: a count is never below zero.
func (l *links) remove(id beneath.FileID) {
	if !l.some.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count[id] > 0 {
		l.change(id, -1)
		l.append(id, -1)
	}
}

func (l *links) of(id beneath.FileID) uint32 {
	if !l.some.Load() {
		return 0
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.count[id]
}

// drop removes a kept file.
func (l *links) drop(d beneath.Dir, name string) error {
	st, err := d.Stat(name)
	if err == nil {
		l.remove(plain(st.ID()))
		if err = d.Remove(name); err == nil {
			l.quota.Freed(&st)
		}
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}
