package outlive

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of the requests of calls over HTTP that outlive a daemon, and of contexts, in bytes. A file counts as fileBytes more.
const (
	maxCalls    = 4 << 20  // of an agent
	maxAllCalls = 64 << 20 // of all agents
	fileBytes   = 4 << 10
)

// callTime is how long the next daemon has the request of a call that the client does not resume. The command ends sooner.
const callTime = time.Minute

// calls are the requests of calls of an agent's sessions, and what these have set of their contexts: files beside those of the
// sessions. Sessions.mu guards them.
type calls struct {
	of   *Sessions
	all  map[string]*call // by file
	size int64            // of all
}

// call is a file of calls.
type call struct {
	size int64
	left bool // by the last daemon, and not resumed yet
}

// callFile returns the name of the file of a call of a session.
func callFile(session, call string) string { return session + "." + call }

// isCall reports whether a text has the form of callFile. The id of a call has 13 characters: see tools.
func isCall(text string) bool {
	session, call, _ := strings.Cut(text, ".")
	return isName(session) && len(call) == 13 &&
		!strings.ContainsFunc(call, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') })
}

// add counts a file, unless there are too many.
func (c *calls) add(name string, file call) bool {
	file.size += fileBytes
	if c.size+file.size > maxCalls {
		return false
	}
	if c.of.web.calls.Add(file.size) > maxAllCalls {
		c.of.web.calls.Add(-file.size)
		return false
	}
	if c.all == nil {
		c.all = map[string]*call{}
	}
	c.all[name] = &file
	c.size += file.size
	return true
}

// remove removes a file.
func (c *calls) remove(name string) {
	if c.forget(name) {
		os.Remove(filepath.Join(c.of.dir, name))
	}
}

// forget counts a file no more, and reports whether it was counted.
func (c *calls) forget(name string) bool {
	file := c.all[name]
	if file == nil {
		return false
	}
	delete(c.all, name)
	c.size -= file.size
	c.of.web.calls.Add(-file.size)
	return true
}

// expect notes a file that the last daemon has left.
func (c *calls) expect(name string, size int64) {
	if !c.add(name, call{size: size, left: true}) {
		os.Remove(filepath.Join(c.of.dir, name))
	}
}

// expire removes the requests that were not resumed.
func (c *calls) expire() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for name, file := range c.all {
		if file.left && isCall(name) {
			c.remove(name)
		}
	}
}

// drop removes the requests of a session; "": of all.
func (c *calls) drop(session string) {
	for name := range c.all {
		if strings.HasPrefix(name, session) {
			c.remove(name)
		}
	}
}

// KeepCall stores the request of a call of a session, and reports whether it is stored.
func (s *Sessions) KeepCall(id, callID string, request []byte) bool {
	name := callFile(id, callID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !isCall(name) {
		return false
	}
	if _, err := os.Lstat(filepath.Join(s.dir, id)); err != nil {
		return false // the session has ended, or ends with the daemon
	}
	if s.calls.all[name] != nil {
		return true // of the last daemon
	}
	if !s.calls.add(name, call{size: int64(len(request))}) {
		return false
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), request, 0o600); err != nil {
		s.calls.remove(name)
		s.web.logger.Warn("a call over HTTP will end with the daemon", "dir", s.dir, "err", err)
		return false
	}
	return true
}

// DropCall removes the request of a call that nobody resumes.
func (s *Sessions) DropCall(id, call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.remove(callFile(id, call))
}

// TakeCall returns the request of a call that the last daemon has left, once.
func (s *Sessions) TakeCall(id, call string) (request []byte, ok bool) {
	return s.take(callFile(id, call))
}

func (s *Sessions) take(name string) (text []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := s.calls.all[name]
	if file == nil || !file.left {
		return nil, false
	}
	file.left = false
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	return text, err == nil
}

// Leaves reports whether the daemon leaves its sessions to the next one now.
func (s *Sessions) Leaves() bool { return s.web.leaves() }
