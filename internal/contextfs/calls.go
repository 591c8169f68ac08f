package contextfs

import "sync"

// Calls has the files that each running call of a client sees. The zero value has none.
type Calls struct {
	mu    sync.RWMutex
	calls map[string]*Files
}

// Show makes files visible to the processes of a call, until hide.
func (c *Calls) Show(call string, content map[string][]byte) (hide func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := c.calls[call]
	if files == nil {
		files = expected(call)
	}
	if err := files.fill(content); err != nil {
		return nil, err
	}
	c.add(files)
	return func() { c.End(call) }, nil
}

// add adds files. The caller holds mu.
func (c *Calls) add(f *Files) {
	if c.calls == nil {
		c.calls = map[string]*Files{}
	}
	c.calls[f.call] = f
}

// Expect makes the processes of a call of the last daemon, in the sandbox of a mount, wait for Show or End.
func (c *Calls) Expect(m *Mount, call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := expected(call)
	f.hold(m) // whose process may have them
	c.add(f)
}

// End makes the files of a call invisible.
func (c *Calls) End(call string) {
	c.mu.Lock()
	files := c.calls[call]
	delete(c.calls, call)
	c.mu.Unlock()
	if files != nil {
		files.End()
	}
}

// Close ends all that are expected.
func (c *Calls) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.calls {
		f.End()
	}
	clear(c.calls)
	return nil
}

// Of returns the files of a call. It waits while they are expected.
func (c *Calls) Of(call string) *Files {
	c.mu.RLock()
	files := c.calls[call]
	c.mu.RUnlock()
	if files != nil {
		<-files.known
	}
	return files
}
