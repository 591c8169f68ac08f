package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// maxDrain bounds the wait for the output of a command that has exited: its
// background processes may hold the pipes open.
const maxDrain = time.Second

// Starter starts commands; a *Session implements it.
type Starter interface {
	Exec(ctx context.Context, c Command) (*Process, error)
}

// Output is the output and the exit status of a command.
type Output struct {
	Stdout string
	Stderr string
	Cut    bool // the middle of Stdout is left out
	Exit   Exit
}

// Collect runs a command with stdin as its input, and waits until it has exited. The end
// of ctx kills it, and Collect returns ctx.Err(). It keeps stdout and stderr bytes of the
// two streams: half from the beginning, half from the end.
func Collect(ctx context.Context, in Starter, c Command, stdin string, stdout, stderr int) (Output, error) {
	p, err := in.Exec(ctx, c)
	if err != nil {
		return Output{}, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	defer p.Close()
	out, errs := newCapture(stdout), newCapture(stderr)
	var streams sync.WaitGroup
	streams.Go(func() {
		_, _ = io.WriteString(p.Stdin, stdin) // the command may exit without reading it
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
		return Output{}, fmt.Errorf("%s: %w", c.Argv[0], err)
	}
	return Output{Stdout: out.String(), Stderr: errs.String(), Cut: out.cut(), Exit: exit}, nil
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
