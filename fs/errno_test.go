package fs

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want fuse.Status
	}{
		"nil":               {nil, fuse.OK},
		"errno":             {syscall.ENOTEMPTY, fuse.Status(syscall.ENOTEMPTY)},
		"wrapped errno":     {fmt.Errorf("x: %w", syscall.ENOSPC), fuse.Status(syscall.ENOSPC)},
		"violation":         {&beneath.Violation{}, fuse.EACCES},
		"wrapped violation": {fmt.Errorf("x: %w", &beneath.Violation{}), fuse.EACCES},
		"denied":            {fmt.Errorf("x: %w", scope.ErrDenied), fuse.EACCES},
		"stale":             {beneath.ErrStale, fuse.Status(syscall.ESTALE)},
		"stale, not absent": {fmt.Errorf("%w: %w", beneath.ErrStale, syscall.ENOENT), fuse.Status(syscall.ESTALE)},
		"answer":            {fmt.Errorf("x: %w", answer(syscall.EPERM)), fuse.EPERM},
		"unknown":           {errors.New("what"), fuse.EIO},
		"another's":         {io.ErrShortWrite, fuse.EIO},
		"never ENOSYS":      {fmt.Errorf("x: %w", syscall.ENOSYS), fuse.EIO},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, status(c.err)) })
	}
}
