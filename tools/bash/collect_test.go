package bash

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestCollect runs commands in another sandbox than the shell's, to their end. The client does not see them.
func TestCollect(t *testing.T) {
	s, _ := newTestShell(t)
	other := newSandbox(t)
	run := func(script, stdin string, limit time.Duration) (sandbox.Output, error) {
		return s.Collect(t.Context(), env, other, sandbox.Command{Argv: []string{"bash", "-c", script}}, stdin, limit, 4096, 100)
	}
	given := strings.Repeat("x", 300_000)
	out, err := run("echo begin; cat; echo bad >&2; exit 3", given, 0)
	require.NoError(t, err)
	assert.Equal(t, 3, out.Exit.Code)
	assert.Equal(t, "bad\n", out.Stderr)
	assert.True(t, out.Cut)
	assert.True(t, strings.HasPrefix(out.Stdout, "begin\nxxx") && strings.HasSuffix(out.Stdout, "xxx"), out.Stdout)
	assert.Less(t, len(out.Stdout), 4200)

	out, err = s.Collect(t.Context(), env, other, sandbox.Command{Argv: []string{"cat"}}, given, 0, 1<<20, 100)
	require.NoError(t, err)
	assert.Equal(t, given, out.Stdout)
	assert.False(t, out.Cut)
	s.budget.free.Store(0) // other commands have it
	out, err = s.Collect(t.Context(), env, other, sandbox.Command{Argv: []string{"cat"}}, given, 0, 1<<20, 100)
	s.budget.free.Store(maxKept)
	require.NoError(t, err)
	assert.True(t, out.Cut, "not all is kept")
	assert.Less(t, len(out.Stdout), 4*chunkSize)

	_, err = run("sleep "+seconds(7101), "", 50*time.Millisecond)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Empty(t, s.list())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Collect(ctx, env, other, sandbox.Command{Argv: []string{"sleep", seconds(7101)}}, "", 0, 1, 1)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = s.Collect(t.Context(), env, other, sandbox.Command{Argv: []string{"no-such-program"}}, "", 0, 1, 1)
	assert.ErrorIs(t, err, unix.ENOENT)
	assert.Zero(t, runs(t, "sleep", seconds(7101)))
	require.NoError(t, other.Close())
	_, err = run("true", "", 0)
	assert.ErrorIs(t, err, sandbox.ErrEnded)
	resumed := env
	resumed.Resumed = true
	_, err = s.Collect(t.Context(), resumed, other, sandbox.Command{}, "", 0, 1, 1)
	assert.Error(t, err, "there is none")
}
