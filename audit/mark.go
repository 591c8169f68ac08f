package audit

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"
)

// markName is the file of the high-water mark, beside the segments.
const markName = "mark"

// reserveStep is how many sequence numbers one fsync(2) of the mark reserves. A power loss skips at most twice as many.
const reserveStep = 1 << 16

// mark is the log's high-water mark: one record that is rewritten in place. The next start learns from it what is
// missing and which numbers are taken.
type mark struct {
	last     uint64 // event appended: written with each group, true until the kernel stops
	synced   uint64 // event known to be on disk
	reserved uint64 // no greater number was given to an event: on disk before the number is used
	calls    uint64 // segment in which the oldest call without an end began; 0: there is none
	boot     uint64 // kernel and mount that last belongs to: bootOf
}

// closed reports whether the last process that had the log open closed it.
func (m mark) closed() bool { return m.last == m.synced && m.last == m.reserved }

// markSize is within one sector, which a disk writes whole.
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

// markFile is the file of a mark. A process that has the log open holds a shared flock(2) on it.
type markFile struct{ *os.File }

func openMark(root *os.Root) (markFile, error) {
	f, err := root.OpenFile(markName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return markFile{}, err
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return markFile{}, err
	}
	return markFile{f}, nil
}

// alone reports whether no other process has the log open. The caller has the lock of the log, which processes that open
// it need as well.
func (f markFile) alone() bool {
	alone := flock(f.File, unix.LOCK_EX|unix.LOCK_NB) == nil
	if flock(f.File, unix.LOCK_SH|unix.LOCK_NB) != nil { // cannot be: nobody else may hold it exclusively
		return false
	}
	return alone
}

// read returns the mark; ok is false when the file holds none.
func (f markFile) read() (m mark, ok bool) {
	var b [markSize]byte
	n, _ := f.ReadAt(b[:], 0)
	return decodeMark(b[:n])
}

func (f markFile) write(m mark) error {
	_, err := f.WriteAt(m.encode(), 0)
	return err
}

// bootOf identifies the running kernel and the mount of dir. What either loses is in no page cache any more: a mark of
// another boot may belong to lines that never reached the disk. Before Linux 6.8 the kernel may give a mount the number
// of an earlier one. It returns the kernel in the upper half, then 16 bits each for the mount namespace and the mount.
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

// sameBoot reports whether nothing was lost between two values of bootOf. In
// another mount namespace, which a daemon of one command has, every mount has
// another number.
func sameBoot(a, b uint64) bool {
	space := func(boot uint64) uint64 { return boot >> 16 & 0xffff }
	return a>>32 == b>>32 && (space(a) != space(b) || a == b)
}
