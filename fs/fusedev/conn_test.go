package fusedev

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestInit: a socket that keeps messages apart stands in for /dev/fuse.
func TestInit(t *testing.T) {
	for minor, epochs := range map[uint32]bool{31: false, epochMinor: true} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		in := fuse.InitIn{Major: 7, Minor: minor}
		in.Opcode, in.Unique, in.Length = 26, 1, uint32(unsafe.Sizeof(in)) // FUSE_INIT
		_, err = unix.Write(pair[1], unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)))
		require.NoError(t, err)
		c := NewConn(pair[0], fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(), &fuse.MountOptions{MaxWrite: MaxWrite}), Options{})
		out, err := c.Init()
		require.NoError(t, err)
		assert.EqualValues(t, MaxWrite, out.MaxWrite)
		assert.Equal(t, epochs, c.Epochs())
		reply := make([]byte, 4096)
		n, err := unix.Read(pair[1], reply)
		require.NoError(t, err)
		assert.EqualValues(t, n, binary.NativeEndian.Uint32(reply), "the length in the header")
	}
}

// TestNotifications: the layout of messages is that of linux/fuse.h.
func TestNotifications(t *testing.T) {
	q := newQueue()
	c := newConn(-1, q, nil, Options{})
	c.expire.Store(fuse.EXPIRE_ONLY)
	c.InvalidateInode(5, false)
	c.InvalidateInode(6, true)
	c.InvalidateEntry(7, "name", true)
	c.InvalidateEntry(7, "n", false)
	assert.True(t, c.InvalidateEntries())
	assert.True(t, c.Prune([]uint64{8, 9}))

	message := func(code uint32, words ...any) []byte {
		var body []byte
		for _, w := range words {
			switch w := w.(type) {
			case uint32:
				body = binary.NativeEndian.AppendUint32(body, w)
			case int:
				body = binary.NativeEndian.AppendUint64(body, uint64(w))
			case string:
				body = append(body, w...)
			}
		}
		head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		head = binary.NativeEndian.AppendUint32(head, code)
		return append(binary.NativeEndian.AppendUint64(head, 0), body...) // unique 0: no reply
	}
	assert.Equal(t, [][]byte{
		message(notifyInode, 5, -1, 0),
		message(notifyInode, 6, 0, 0),
		message(notifyEntry, 7, uint32(4), uint32(fuse.EXPIRE_ONLY), "name\x00"),
		message(notifyEntry, 7, uint32(1), uint32(0), "n\x00"),
		message(notifyEpoch),
		message(notifyPrune, uint32(2), uint32(0), 0, 8, 9),
	}, q.written)
}
