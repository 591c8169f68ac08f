package console

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/loopback"
)

// SocketFD is the program's descriptor of the listening socket.
const SocketFD = 3

// Socket is where the page is served. The process that starts the program owns it: while the program is started again, no
// other user of the host gets the address, and with it the open pages, cookies and service worker of its origin. Browsers
// that connect meanwhile wait in the socket's backlog: listen(2).
type Socket struct {
	options  Options
	listener net.Listener
	file     *os.File // of the program
}

// Listen listens at an address, or at a unix socket that this user alone may use. See [loopback.Listen].
func Listen(o Options) (*Socket, error) {
	s := &Socket{options: o}
	var err error
	if path, ok := strings.CutPrefix(o.Listen, UnixPrefix); ok {
		s.listener, err = api.Listen(path)
	} else {
		s.listener, _, err = loopback.Listen(o.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("console: %w", loopback.Refused(err, "give another address"))
	}
	if s.file, err = s.listener.(interface{ File() (*os.File, error) }).File(); err != nil {
		s.listener.Close()
		return nil, err
	}
	return s, nil
}

// Close leaves the address to others. The program has ended.
func (s *Socket) Close() {
	s.file.Close()
	s.listener.Close()
}
