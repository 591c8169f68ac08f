package fs

import (
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The notifications by which the kernel is told to ask again; enum
// fuse_notify_code in linux/fuse.h. Some wait for a lock that a client holds who
// waits for an answer of ours, so a reader must not send those.
const (
	notifyInode = 2
	notifyEntry = 3
	notifyEpoch = 8 // all names at once, and no lock
	notifyPrune = 9 // names that nobody uses, and no lock
)

// epochMinor is the minor protocol version of FUSE_NOTIFY_INC_EPOCH, Linux 6.16.
const epochMinor = 44

// dropAttr makes the kernel ask again what a node is, and with data lets go of
// what it has read of it.
func (c *conn) dropAttr(node uint64, data bool) {
	out := fuse.NotifyInvalInodeOut{Ino: node, Off: -1}
	if data {
		out.Off = 0 // to the end
	}
	_ = c.notify(notifyInode, unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), "")
}

// dropName makes the kernel ask again what stands at a name. One that is known
// to mean the same still keeps its place, for who works there: it is only asked
// again. That may be overtaken by an answer to an earlier question.
func (c *conn) dropName(dir uint64, name string, same bool) {
	out := fuse.NotifyInvalEntryOut{Parent: dir, NameLen: uint32(len(name))}
	if same {
		out.Flags = c.expire.Load()
	}
	_ = c.notify(notifyEntry, unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), name+"\x00")
}

// dropNames makes the kernel ask again for every name, and reports whether it
// can be told so.
func (c *conn) dropNames() bool { return c.notify(notifyEpoch, nil, "") == nil }

// pruneNodes asks the kernel to forget nodes that nobody uses, and reports whether it
// can be asked: FUSE_NOTIFY_PRUNE, since Linux 6.18.
func (c *conn) pruneNodes(ids []uint64) bool {
	type pruneOut struct {
		count, padding uint32
		spare          uint64
	}
	out := pruneOut{count: uint32(len(ids))}
	body := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out))...)
	body = append(body, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 8*len(ids))...)
	return c.notify(notifyPrune, body, "") == nil
}

// notify sends a notification. The kernel fails those of what it does not know
// (any more) with ENOENT.
func (c *conn) notify(code int32, body []byte, name string) error {
	head := fuse.OutHeader{Status: code}
	size := int(unsafe.Sizeof(head))
	msg := make([]byte, size, size+len(body)+len(name))
	msg = append(append(msg, body...), name...)
	head.Length = uint32(len(msg))
	*(*fuse.OutHeader)(unsafe.Pointer(&msg[0])) = head
	_, err := unix.Write(c.fd, msg)
	return err
}
