package loopback

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// User returns the user whose process has connected, by the context of a request: that of the socket at the other end, as the
// kernel says. It fails for a process in another network namespace, and when the process has closed its socket.
func User(ctx context.Context) (uid uint32, err error) {
	c, ok := ctx.Value(connKey{}).(*boundedConn)
	if !ok {
		return 0, errors.New("the request has no connection")
	}
	c.asked.Do(func() { c.uid, c.unknown = Peer(c.Conn) })
	return c.uid, c.unknown
}

// Peer is User of a connection.
func Peer(c net.Conn) (uid uint32, err error) {
	theirs, ours := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	if theirs == nil || ours == nil {
		return 0, errors.New("no TCP connection")
	}
	return owner(theirs.AddrPort(), ours.AddrPort())
}

// sockID is struct inet_diag_sockid of linux/inet_diag.h. Ports and addresses are in network byte order.
type sockID struct {
	SPort, DPort [2]byte
	Src, Dst     [16]byte
	If           uint32
	Cookie       [2]uint32
}

// diagRequest is struct inet_diag_req_v2 behind its nlmsghdr.
type diagRequest struct {
	unix.NlMsghdr
	Family, Protocol, Ext, Pad uint8
	States                     uint32
	ID                         sockID
}

// diagAnswer is struct inet_diag_msg behind its nlmsghdr.
type diagAnswer struct {
	unix.NlMsghdr
	Family, State, Timer, Retrans       uint8
	ID                                  sockID
	Expires, RQueue, WQueue, UID, Inode uint32
}

const (
	established = 1         // TCP_ESTABLISHED of net/tcp_states.h
	noCookie    = 1<<32 - 1 // INET_DIAG_NOCOOKIE
)

// owner returns the user of the socket at one end of a TCP connection: sock_diag(7). A socket that no process has any more, and
// one in TIME_WAIT, have the user 0 in the answer: those are refused.
func owner(of, to netip.AddrPort) (uid uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	family := uint8(unix.AF_INET)
	if of.Addr().Is6() && !of.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	q := diagRequest{Family: family, Protocol: unix.IPPROTO_TCP, States: noCookie, ID: sockID{Cookie: [2]uint32{noCookie, noCookie}}}
	q.NlMsghdr = unix.NlMsghdr{Len: uint32(binary.Size(q)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST, Seq: 1}
	binary.BigEndian.PutUint16(q.ID.SPort[:], of.Port())
	binary.BigEndian.PutUint16(q.ID.DPort[:], to.Port())
	copy(q.ID.Src[:], of.Addr().Unmap().AsSlice())
	copy(q.ID.Dst[:], to.Addr().Unmap().AsSlice())
	ask, err := binary.Append(nil, binary.NativeEndian, q)
	if err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT) // the kernel has answered in sendto
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	var a diagAnswer
	if binary.Read(bytes.NewReader(buf[:n]), binary.NativeEndian, &a) != nil { // the answer is an error, and shorter
		return 0, errors.New("sock_diag: the kernel knows no such connection")
	}
	switch {
	case a.Type != unix.SOCK_DIAG_BY_FAMILY:
		return 0, fmt.Errorf("sock_diag: message %d", a.Type)
	case a.State != established || a.Inode == 0 || a.ID.SPort != q.ID.SPort || a.ID.DPort != q.ID.DPort:
		return 0, errors.New("sock_diag: the other end has closed the connection")
	}
	return a.UID, nil
}
