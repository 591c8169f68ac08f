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

// lastWords is how long the output of a runner that has ended is waited for:
// what it left in the background may hold it.
const lastWords = time.Second

// Place is a member's sandbox; a *sandbox.Session is one.
type Place interface {
	Exec(ctx context.Context, c sandbox.Command) (*sandbox.Process, error)
}

// Run runs a runner in a member's sandbox, gives it stdin and waits until it
// has ended, or ctx has, which kills it. Of what it writes the beginning and the
// end are kept, as much as the tool shows.
func Run(ctx context.Context, place Place, c sandbox.Command, stdin string) (Output, error) {
	p, err := place.Exec(ctx, c)
	if err != nil {
		return Output{}, fmt.Errorf("start runner: %w", err)
	}
	defer p.Close()
	out, errs := newCapture(maxAnswer), newCapture(2*maxErrors)
	var streams sync.WaitGroup
	streams.Go(func() {
		io.WriteString(p.Stdin, stdin) // a runner need not read all of it
		p.Stdin.Close()
	})
	streams.Go(func() { io.Copy(out, p.Stdout) }) // EOF, or closed below
	streams.Go(func() { io.Copy(errs, p.Stderr) })
	exit, err := p.Wait()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		streams.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(lastWords):
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

// capture keeps the beginning and the end of what is written to it.
type capture struct {
	half  int // bytes of each
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
