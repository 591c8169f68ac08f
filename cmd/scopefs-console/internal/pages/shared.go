package pages

import (
	"sync"
	"time"
)

// maxShared limits the pages that are kept.
const maxShared = 32

// shared are the pages that open pages have loaded again since the last answer of the daemon: all viewers of one get the
// same. Its methods are safe for concurrent use.
type shared struct {
	mu    sync.Mutex
	at    time.Time // of the answer
	pages map[string]*sharedPage
}

type sharedPage struct {
	once   sync.Once
	status int
	text   []byte
}

// page returns the page of a key, made after the answer of a time.
func (s *shared) page(at time.Time, key string, make func() (int, []byte)) (status int, text []byte) {
	s.mu.Lock()
	if !s.at.Equal(at) || s.pages == nil || len(s.pages) >= maxShared {
		s.at, s.pages = at, map[string]*sharedPage{}
	}
	p := s.pages[key]
	if p == nil {
		p = &sharedPage{}
		s.pages[key] = p
	}
	s.mu.Unlock()
	p.once.Do(func() { p.status, p.text = make() })
	return p.status, p.text
}

// forget forgets all pages: a visitor has changed something.
func (s *shared) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = nil
}
