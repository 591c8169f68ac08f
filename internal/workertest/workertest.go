// Package workertest serves the file worker without a sandbox, in tests of the file tools.
package workertest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/tree"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// Start returns a worker that is a goroutine of the test. The test closes it, and the
// goroutine must end by the test's end.
func Start(t testing.TB, handle tree.Handler) *worker.Worker {
	t.Helper()
	inR, inW, err := os.Pipe()
	require.NoError(t, err)
	outR, outW, err := os.Pipe()
	require.NoError(t, err)
	errR, errW, err := os.Pipe()
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		err := tree.Serve(int(inR.Fd()), int(outW.Fd()), handle) // Fd makes them blocking
		inR.Close()
		outW.Close()
		errW.Close()
		done <- err
	}()
	t.Cleanup(func() {
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Error("serve goes on")
		}
	})
	return worker.New(func(context.Context) (worker.Pipes, error) {
		return worker.Pipes{In: inW, Out: outR, Err: errR, Kill: func() {}}, nil
	})
}
