package outlive

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxContext bounds what is kept of a context that a session has set, in bytes. A longer one ends with the daemon.
const maxContext = 4 << 20

// Context is what the client of a sandbox has set of its context, in a memfd, memfd_create(2), that the place of the sandbox has:
// it is never on a disk, and ends with the holder. The zero value is empty.
type Context struct {
	mu   sync.Mutex
	file *os.File // nil: none yet
	span          // of the messages
}

// span is where the messages are. It is the beginning of the file, which one write replaces.
type span struct{ at, size int64 }

const spanBytes = 16

// Set replaces the messages; nil is none. A daemon that is killed meanwhile leaves the earlier ones.
func (c *Context) Set(messages []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(messages) > maxContext {
		messages = nil
	}
	if c.make() != nil {
		return
	}
	next := span{spanBytes, int64(len(messages))}
	if c.size > 0 && next.at+next.size > c.at { // not over those of before
		next.at = c.at + c.size
	}
	if _, err := c.file.WriteAt(messages, next.at); err != nil {
		next.size = 0
	}
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(next.at)), uint64(next.size))
	if _, err := c.file.WriteAt(head, 0); err == nil {
		c.span = next
	}
	_ = c.file.Truncate(max(spanBytes, c.at+c.size))
}

// make makes the file if there is none. The caller holds mu.
func (c *Context) make() error {
	if c.file != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("scopefs-messages", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	c.file = os.NewFile(uintptr(fd), "messages")
	return nil
}

// File returns a descriptor for the place of a sandbox.
func (c *Context) File() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.make(); err != nil {
		return nil, err
	}
	own, err := duplicates([]*os.File{c.file})
	if err != nil {
		return nil, err
	}
	return own[0], nil
}

// adopt continues with the file of an earlier daemon.
func (c *Context) adopt(f *os.File) error {
	own, err := duplicates([]*os.File{f})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file = own[0]
	var head [spanBytes]byte
	if _, err := c.file.ReadAt(head[:], 0); err == nil { // else it is empty
		c.span = span{int64(binary.BigEndian.Uint64(head[:])), int64(binary.BigEndian.Uint64(head[8:]))}
	}
	return nil
}

// Messages returns what was set last; nil: nothing.
func (c *Context) Messages() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size <= 0 || c.size > maxContext {
		return nil
	}
	text := make([]byte, c.size)
	if _, err := c.file.ReadAt(text, c.at); err != nil {
		return nil
	}
	return text
}

// Close frees the memory, unless the next daemon gets it.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file.Close() // of nil is an error and no more
}

// contextFile returns the name of the file of what a session over HTTP has set.
func contextFile(session string) string { return session + ".context" }

// KeepContext replaces what a session has set of its context; nil removes it. Content must not be on a disk: without a run directory
// on tmpfs, it ends with the daemon.
func (s *Sessions) KeepContext(id string, messages []byte) {
	name := contextFile(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	var fs unix.Statfs_t
	if s.ended || !isName(id) || unix.Statfs(s.dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return
	}
	_, err := os.Lstat(filepath.Join(s.dir, id))
	size := int64(len(messages))
	if err != nil || size == 0 || size > maxContext { // the session has ended, or ends with the daemon
		s.calls.remove(name)
		return
	}
	s.calls.forget(name)
	if !s.calls.add(name, call{size: size}) {
		os.Remove(filepath.Join(s.dir, name))
		return
	}
	if err := s.write(name, messages); err != nil {
		s.calls.remove(name)
		s.web.logger.Warn("the context of a session over HTTP will end with the daemon", "dir", s.dir, "err", err)
	}
}

// TakeContext returns what a session of the last daemon has set, once; nil: nothing.
func (s *Sessions) TakeContext(id string) []byte {
	text, _ := s.take(contextFile(id))
	return text
}

// isContext reports whether a name is that of what a session of the last daemon has set.
func (s *Sessions) isContext(name string) bool {
	session, found := strings.CutSuffix(name, contextFile(""))
	_, left := s.left[session]
	return found && left
}
