package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/network"
)

// TestBatch: what is written arrives once and in order, the tail before Close returns.
// synctest fails a test that leaves a goroutine.
func TestBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := net.Pipe()
		b := newBatch(t.Context(), c)
		want := make([]byte, 8<<20)
		_, _ = rand.Read(want)
		go func() {
			for rest := want; len(rest) > 0; {
				n := min(1+mathrand.IntN(20<<10), len(rest))
				if mathrand.IntN(3) == 0 {
					time.Sleep(time.Millisecond) // the reader may see everything before
				}
				n, err := b.Write(rest[:n])
				assert.NoError(t, err)
				rest = rest[n:]
			}
			assert.NoError(t, b.SetWriteDeadline(time.Now())) // as crypto/tls does after its last record
			assert.NoError(t, b.Close())
			_, err := b.Write([]byte("late"))
			assert.Error(t, err)
		}()
		var got bytes.Buffer
		for {
			time.Sleep(time.Duration(mathrand.IntN(2)) * time.Millisecond)
			if _, err := io.CopyN(&got, peer, int64(1+mathrand.IntN(100<<10))); err != nil {
				assert.ErrorIs(t, err, io.EOF)
				break
			}
		}
		assert.True(t, bytes.Equal(want, got.Bytes()))
	})
}

// TestBatchIdle: an idle connection has no buffer, and a byte waits for no other.
func TestBatchIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := net.Pipe()
		b := newBatch(t.Context(), c)
		began := time.Now()
		for range 3 {
			_, err := b.Write([]byte("x"))
			require.NoError(t, err)
			_, err = peer.Read(make([]byte, 1))
			require.NoError(t, err)
			synctest.Wait()
			assert.Nil(t, b.pending)
			assert.False(t, b.busy)
		}
		assert.Zero(t, time.Since(began))
		b.Close()
	})
}

// TestBatchStalled: a peer that does not read holds two buffers at most. Write and Close end by
// the deadline, by flushLimit or at once when the proxy ends.
func TestBatchStalled(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(b *batch, cancel func())
		want error
		took time.Duration
	}{
		"deadline":      {func(b *batch, _ func()) { _ = b.SetWriteDeadline(time.Now().Add(time.Minute)) }, os.ErrDeadlineExceeded, time.Minute},
		"past deadline": {func(b *batch, _ func()) { _ = b.SetDeadline(time.Now()) }, os.ErrDeadlineExceeded, flushLimit},
		"close":         {func(b *batch, _ func()) { b.Close() }, net.ErrClosed, flushLimit},
		"proxy ends":    {func(_ *batch, cancel func()) { cancel() }, io.ErrClosedPipe, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c, _ := net.Pipe()
			b := newBatch(ctx, c)
			began, done := time.Now(), make(chan error)
			go func() {
				n, err := b.Write(make([]byte, 1<<20))
				assert.Equal(t, 2*batchSize, n, name)
				done <- err
			}()
			synctest.Wait()
			go tc.end(b, cancel)
			require.ErrorIs(t, <-done, tc.want, name)
			_, err := b.Write([]byte("x"))
			assert.ErrorIs(t, err, tc.want, name)
			b.Close()
			assert.Equal(t, tc.took, time.Since(began), name)
			cancel()
		})
	}
}

// TestBatchFails: a later Write returns the error of an earlier one.
func TestBatchFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peer := net.Pipe()
		b := newBatch(t.Context(), c)
		peer.Close()
		_, err := b.Write([]byte("x"))
		require.NoError(t, err)
		for range 2 {
			synctest.Wait()
			_, err = b.Write([]byte("x"))
			assert.ErrorIs(t, err, io.ErrClosedPipe)
		}
		assert.Nil(t, b.pending)
		b.Close()
	})
}

// TestInterceptTail: a client gets a whole response and close_notify. Without
// close_notify crypto/tls returns io.ErrUnexpectedEOF.
func TestInterceptTail(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20))
	})
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	for range 10 {
		c := l.tls(t, "good.example", roots)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		assert.EqualValues(t, 1<<20, n)
		_, err = r.ReadByte()
		assert.Equal(t, io.EOF, err)
	}
}
