package pinned

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

func TestThread(t *testing.T) {
	thread := Start()
	ids := map[int]bool{}
	for range 100 {
		done := make(chan error)
		go func() { done <- thread.Do(func() error { ids[unix.Gettid()] = true; return unix.EIO }) }()
		assert.ErrorIs(t, <-done, unix.EIO)
	}
	assert.Len(t, ids, 1, "one thread, whatever goroutine asks")
	assert.NotContains(t, ids, unix.Getpid(), "and never the main one")
	thread.Stop()
	assert.ErrorIs(t, thread.Do(func() error { return errors.New("ran") }), os.ErrClosed)
}
