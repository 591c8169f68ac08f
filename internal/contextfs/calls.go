package contextfs

import "sync"

// Calls has the files that each running call of a client sees. The zero value has none.
type Calls struct {
	mu    sync.RWMutex
	calls map[string]*Files
}

// Show makes files visible to the processes of a call, until hide.
func (c *Calls) Show(call string, content map[string][]byte) (hide func(), err error) {
	files, err := New(content)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]*Files{}
	}
	c.calls[call] = files
	return func() {
		c.mu.Lock()
		delete(c.calls, call)
		c.mu.Unlock()
		files.End()
	}, nil
}

// Of returns the files of a call.
func (c *Calls) Of(call string) *Files {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.calls[call]
}
