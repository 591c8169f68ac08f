package delegate

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools/sandbox"
)

// maxDrain bounds the wait for the output of a runner that has exited: its
// background processes may hold the pipes open.
const maxDrain = time.Second

// Sandbox starts commands; a *sandbox.Session implements it.
type Sandbox interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// Run runs the command c in a runner sandbox with stdin as its input, and waits
// until it has exited. The end of ctx kills it, and Run returns ctx.Err(). Run
// keeps 256 KiB of stdout and 4 KiB of stderr: half from the beginning, half from
// the end.
func Run(ctx context.Context, in Sandbox, c sandbox.Command, stdin string) (Output, error) {
	p, err := in.Exec(ctx, c)
	if err != nil {
		return Output{}, fmt.Errorf("start runner: %w", err)
	}
	defer p.Close()
	out, errs := newCapture(maxAnswer), newCapture(2*maxErrors)
	var streams sync.WaitGroup
	streams.Go(func() {
		_, _ = io.WriteString(p.Stdin, stdin) // the runner may exit without reading it
		p.Stdin.Close()
	})
	streams.Go(func() { _, _ = io.Copy(out, p.Stdout) }) // until EOF or the Close below
	streams.Go(func() { _, _ = io.Copy(errs, p.Stderr) })
	exit, err := p.Wait()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		streams.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(maxDrain):
		p.Close()
		<-ended
	}
	if ctx.Err() != nil {
		return Output{}, ctx.Err()
	}
	if err != nil {
		return Output{}, fmt.Errorf("runner: %w", err)
	}
	return Output{Stdout: out.String(), Stderr: errs.String(), Exit: exit}, nil
}

// capture is an io.Writer that keeps the beginning and the end of its input.
type capture struct {
	half  int // bytes kept of each
	head  []byte
	tail  []byte
	total int
}

func newCapture(limit int) *capture { return &capture{half: limit / 2} }

func (c *capture) Write(p []byte) (int, error) {
	c.total += len(p)
	n := min(len(p), c.half-len(c.head))
	c.head = append(c.head, p[:n]...)
	rest := p[n:]
	rest = rest[max(0, len(rest)-c.half):]
	c.tail = append(c.tail[max(0, len(c.tail)+len(rest)-c.half):], rest...)
	return len(p), nil
}

func (c *capture) cut() bool { return c.total > len(c.head)+len(c.tail) }

func (c *capture) String() string {
	if !c.cut() {
		return strings.ToValidUTF8(string(c.head)+string(c.tail), "\uFFFD")
	}
	left := c.total - len(c.head) - len(c.tail)
	return strings.ToValidUTF8(string(c.head), "") + fmt.Sprintf("\n[%d bytes left out]\n", left) + strings.ToValidUTF8(string(c.tail), "")
}
