package paths

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SocketName returns a name for a socket that fits into sockaddr_un (108 bytes): of a longer path, one by a descriptor of its
// directory, which release closes.
func SocketName(path string) (name string, release func(), err error) {
	if len(path) < 108 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("socket %q: %w", path, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { unix.Close(fd) }, nil
}
