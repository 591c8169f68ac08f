package egress

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"

	"github.com/scopefs/scopefs/scope"
)

// The parts of SOCKS5 (RFC 1928) that the proxy speaks.
const (
	socksVersion  = 5
	socksNoAuth   = 0
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
	socksOK       = 0
	socksFailure  = 1
	socksDenied   = 2
	socksHost     = 4
	socksCommand  = 7
	socksAddress  = 8
	socksNoMethod = 0xff
)

// readSOCKS reads a client's greeting and request from its first byte on, and
// answers the greeting.
func readSOCKS(c io.ReadWriter) (host string, port uint16, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", 0, err
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(c, methods); err != nil {
		return "", 0, err
	}
	if bytes.IndexByte(methods, socksNoAuth) < 0 {
		_, _ = c.Write([]byte{socksVersion, socksNoMethod})
		return "", 0, malformed("the client wants to authenticate")
	}
	if _, err := c.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return "", 0, err
	}
	return readSOCKSRequest(c)
}

func readSOCKSRequest(c io.ReadWriter) (host string, port uint16, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", 0, err
	}
	if head[0] != socksVersion || head[1] != socksConnect || head[2] != 0 {
		_ = answerSOCKS(c, socksCommand)
		return "", 0, malformed("SOCKS: command %d is not CONNECT", head[1])
	}
	size := map[byte]int{socksIPv4: 4, socksIPv6: 16}[head[3]]
	if head[3] == socksName {
		var length [1]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return "", 0, err
		}
		size = int(length[0])
	}
	if size == 0 {
		_ = answerSOCKS(c, socksAddress)
		return "", 0, malformed("SOCKS: address type %d is unknown", head[3])
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(c, rest); err != nil {
		return "", 0, err
	}
	host, port = string(rest[:size]), binary.BigEndian.Uint16(rest[size:])
	if head[3] != socksName {
		ip, _ := netip.AddrFromSlice(rest[:size]) // of a right size
		host = ip.Unmap().String()
	}
	return host, port, nil
}

// answerSOCKS writes the reply to a request.
func answerSOCKS(c io.Writer, reply byte) error {
	_, err := c.Write([]byte{socksVersion, reply, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// socksReply returns the reply for a refusal; nil is success.
func socksReply(r *refusal) byte {
	switch {
	case r == nil:
		return socksOK
	case r.kind == scope.KindProtocol:
		return socksFailure
	case r.verdict != "":
		return socksDenied
	}
	return socksHost
}
