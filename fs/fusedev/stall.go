package fusedev

import (
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The opcodes of requests that change nothing, and of what takes back their replies: enum fuse_opcode, linux/fuse.h.
const (
	opLookup, opForget, opGetattr, opReadlink, opOpen      = 1, 2, 3, 5, 14
	opRead, opStatfs, opRelease, opGetxattr, opListxattr   = 15, 17, 18, 22, 23
	opOpendir, opReaddir, opAccess, opReaddirplus, opStatx = 27, 28, 34, 44, 52
)

// reads reports whether a request changes nothing, so that its outcome does not matter to a client that has an error.
func reads(request []byte) bool {
	head := (*fuse.InHeader)(unsafe.Pointer(&request[0]))
	switch head.Opcode {
	case opOpen:
		return (*fuse.OpenIn)(unsafe.Pointer(&request[0])).Flags&unix.O_TRUNC == 0
	case opLookup, opGetattr, opReadlink, opRead, opStatfs, opGetxattr, opListxattr, opOpendir, opReaddir, opAccess, opReaddirplus, opStatx:
		return true
	}
	return false
}

// expect starts to wait for the Handler. A request that only reads gets EIO after Options.Patience; the Handler goes on,
// because a system call that waits for a server cannot be cancelled. The caller stops the timer, which may be nil.
func (c *Conn) expect(request []byte) *time.Timer {
	if c.patience == 0 || !reads(request) {
		return nil
	}
	unique := (*fuse.InHeader)(unsafe.Pointer(&request[0])).Unique
	return time.AfterFunc(c.patience, func() {
		c.open.RLock()
		defer c.open.RUnlock()
		if c.closed {
			return
		}
		reply := fuse.OutHeader{Length: uint32(unsafe.Sizeof(fuse.OutHeader{})), Status: -int32(unix.EIO), Unique: unique}
		if c.dev.write(unsafe.Slice((*byte)(unsafe.Pointer(&reply)), reply.Length)) == nil {
			c.logger.Warn("the file system below does not respond: a client has EIO", "after", c.patience)
		}
	})
}

// takeBack undoes a reply that came too late: the kernel has no node of the lookup and no handle of the open.
func (c *Conn) takeBack(r *reader, size int) {
	head, reply := *(*fuse.InHeader)(unsafe.Pointer(&r.in[0])), (*fuse.OutHeader)(unsafe.Pointer(&r.out[0]))
	at := unsafe.Sizeof(*reply)
	if reply.Status != 0 || size < int(at)+8 {
		return
	}
	id := *(*uint64)(unsafe.Pointer(&r.out[at])) // fuse_entry_out.nodeid, fuse_open_out.fh
	switch head.Opcode {
	case opLookup:
		if id == 0 { // a name that is absent
			return
		}
		in := fuse.ForgetIn{InHeader: head, Nlookup: 1}
		in.NodeId, in.Opcode, in.Length = id, opForget, uint32(unsafe.Sizeof(in))
		c.again(r, unsafe.Slice((*byte)(unsafe.Pointer(&in)), in.Length))
	case opOpen:
		in := fuse.ReleaseIn{InHeader: head, Fh: id}
		in.Opcode, in.Length = opRelease, uint32(unsafe.Sizeof(in))
		c.again(r, unsafe.Slice((*byte)(unsafe.Pointer(&in)), in.Length))
	}
}

// again has the Handler perform a request that the kernel has not sent.
func (c *Conn) again(r *reader, request []byte) {
	r.request[0], r.reply[0] = request, r.out
	_, _ = c.handler.HandleRequest(r.request[:], r.reply[:])
}
