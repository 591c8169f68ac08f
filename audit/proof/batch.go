package proof

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/audit/tree"
)

// A batch is lines of a segment that one goroutine hashes.
type batch struct {
	text   []byte
	leaves []tlog.Hash
	hashed chan struct{} // has a value when leaves is set
}

// eachLeaf calls do with each line of a segment and its hash, in order. It hashes on all processors.
func eachLeaf(ctx context.Context, root *os.Root, seg segment.Segment, do func(line []byte, leaf tlog.Hash) error) error {
	workers := runtime.GOMAXPROCS(0)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	free := make(chan *batch, workers+2) // all that there are: no send to these channels blocks
	order, jobs := make(chan *batch, cap(free)), make(chan *batch, cap(free))
	for range cap(free) {
		free <- &batch{hashed: make(chan struct{}, 1)}
	}
	var failed error
	running.Go(func() {
		defer close(order)
		defer close(jobs)
		var b *batch
		failed = segment.Lines(root, seg, 0, -1, func(line []byte) error {
			if b == nil {
				select {
				case b = <-free:
				case <-ctx.Done():
					return ctx.Err()
				}
				b.text = b.text[:0]
			}
			if b.text = append(b.text, line...); len(b.text) >= segment.BlockSize {
				order <- b
				jobs <- b
				b = nil
			}
			return nil
		})
		if b != nil {
			order <- b
			jobs <- b
		}
	})
	for range workers {
		running.Go(func() {
			var leaf tree.Leaf
			for b := range jobs {
				b.leaves = b.leaves[:0]
				for line := range bytes.Lines(b.text) {
					b.leaves = append(b.leaves, leaf.Hash(segment.Unended(line)))
				}
				b.hashed <- struct{}{}
			}
		})
	}
	for b := range order {
		<-b.hashed
		i := 0
		for line := range bytes.Lines(b.text) {
			if err := do(line, b.leaves[i]); err != nil {
				return err
			}
			i++
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		free <- b
	}
	return failed
}
