package egress

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

// FuzzSOCKS: a request is read to its end and no further, its name is what the client wrote, and the answer is one of SOCKS5.
func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbbGET"))
	f.Add([]byte("\x05\x02\x02\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x1a127.0.0.1\x00.allowed.example\x00\x50"))
	f.Add([]byte("\x05\x01\x02\x05\x03\x00\x03\x00"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		rest, answer := bytes.NewReader(sent), &bytes.Buffer{}
		host, port, err := readSOCKS(struct {
			io.Reader
			io.Writer
		}{rest, answer})
		assert.Contains(t, []int{0, 2, 12}, answer.Len())
		if err != nil {
			return
		}
		read := sent[:len(sent)-rest.Len()]
		assert.Equal(t, port, binary.BigEndian.Uint16(read[len(read)-2:]))
		request := read[2+int(read[1]):]
		if request[3] == socksName {
			assert.Equal(t, string(request[5:len(request)-2]), host)
			assert.Len(t, host, int(request[4]))
			return
		}
		ip, err := netip.ParseAddr(host)
		assert.NoError(t, err)
		assert.False(t, ip.Is4In6(), "rules are about IPv4 then")
	})
}
