package audit

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
)

// reserveStep is how many sequence numbers one fsync(2) of the mark reserves. A power loss skips at most twice this
// number.
const reserveStep = 1 << 16

// mark is the log's high-water mark: one record, rewritten in place. After a crash the next process finds in it which
// events are missing and which numbers are assigned.
type mark struct {
	last     uint64 // the last event appended; written with each group, valid until the kernel stops
	synced   uint64 // the last event known to be on disk
	reserved uint64 // upper limit of the numbers assigned; synced before a number is used
	calls    uint64 // the segment in which the oldest open call began; 0 if none
	boot     uint64 // the kernel and mount for which last is valid: bootOf
}

// closed reports whether the last process that had the log open closed it.
func (m mark) closed() bool { return m.last == m.synced && m.last == m.reserved }

// markSize is less than a sector, which a disk writes atomically.
const markSize = 5*8 + 4

func (m mark) encode() []byte {
	b := make([]byte, 0, markSize)
	for _, n := range [...]uint64{m.last, m.synced, m.reserved, m.calls, m.boot} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func decodeMark(b []byte) (m mark, ok bool) {
	if len(b) != markSize || crc32.ChecksumIEEE(b[:markSize-4]) != binary.LittleEndian.Uint32(b[markSize-4:]) {
		return mark{}, false
	}
	for i, n := range [...]*uint64{&m.last, &m.synced, &m.reserved, &m.calls, &m.boot} {
		*n = binary.LittleEndian.Uint64(b[i*8:])
	}
	return m, true
}

// markFile is the file of a mark. Each process that has the log open holds a shared flock(2) on it.
type markFile struct{ *os.File }

func openMark(root *os.Root) (markFile, error) {
	f, err := root.OpenFile(segment.Mark, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return markFile{}, err
	}
	if err := segment.Lock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return markFile{}, err
	}
	return markFile{f}, nil
}

// alone reports whether no other process has the log open. The caller holds the log's lock, which a process needs to
// open the log.
func (f markFile) alone() bool {
	alone := segment.Lock(f.File, unix.LOCK_EX|unix.LOCK_NB) == nil
	if segment.Lock(f.File, unix.LOCK_SH|unix.LOCK_NB) != nil { // cannot happen: no process holds it exclusively without the log's lock
		return false
	}
	return alone
}

// read returns the mark. ok is false if the file holds no valid mark.
func (f markFile) read() (m mark, ok bool) {
	var b [markSize]byte
	n, _ := f.ReadAt(b[:], 0)
	return decodeMark(b[:n])
}

func (f markFile) write(m mark) error {
	_, err := f.WriteAt(m.encode(), 0)
	return err
}

// bootOf identifies the running kernel and the mount of dir. A crash of the kernel or an unmount loses the page
// cache, so a mark of another boot may count lines that never reached the disk. Before Linux 6.8 the kernel may reuse
// a mount's number. The upper half of the result identifies the kernel, then 16 bits each the mount namespace and the
// mount.
func bootOf(dir *os.File) uint64 {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, _ := os.Readlink("/proc/self/ns/mnt")
	var st unix.Statx_t
	_ = unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE, &st)
	return sum32(string(boot))<<32 | sum32(space)&0xffff<<16 | sum32(fmt.Sprint(st.Mnt_id))&0xffff
}

func sum32(s string) uint64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return uint64(h.Sum32())
}

// sameBoot reports whether the page cache survived between two values of bootOf. In another mount namespace, such as
// that of a daemon for one command, each mount has another number. There sameBoot compares only the kernel.
func sameBoot(a, b uint64) bool {
	space := func(boot uint64) uint64 { return boot >> 16 & 0xffff }
	return a>>32 == b>>32 && (space(a) != space(b) || a == b)
}
