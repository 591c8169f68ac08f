package session

import "sync"

// opened is a value that is opened on first use, and again after an error or nil. The zero value is not open. Its methods
// are safe for concurrent use. Only the function of get is called under its lock.
type opened[T any] struct {
	mu    sync.Mutex
	value *T
}

// get returns the value, and opens it first if need be.
func (o *opened[T]) get(open func() (*T, error)) (*T, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.value != nil {
		return o.value, nil
	}
	value, err := open()
	if err == nil {
		o.value = value
	}
	return value, err
}

// now returns the value; nil if it is not open.
func (o *opened[T]) now() *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.value
}

// drop forgets the value, and returns it; nil if it was not open.
func (o *opened[T]) drop() *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.value
	o.value = nil
	return old
}
