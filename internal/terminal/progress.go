package terminal

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/printable"
)

// Soon is how long a command works before it shows its progress.
const Soon = time.Second

// maxProgress bounds the characters of a line of progress: one that wraps could not be erased.
const maxProgress = 78

// Progress is a line on a terminal that says what a command does. A nil *Progress shows nothing.
type Progress struct {
	to    io.Writer
	began time.Time
	ended chan struct{}
	end   sync.Once
	shows sync.WaitGroup

	mu   sync.Mutex
	text string
}

// Show shows a line on a terminal from soon on until End, anew each time that soon has passed. It returns nil for what is no terminal.
func Show(to io.Writer, soon time.Duration, text string) *Progress {
	if !Is(to) {
		return nil
	}
	p := &Progress{to: to, began: time.Now(), ended: make(chan struct{}), text: text}
	p.shows.Go(func() { p.show(soon) })
	return p
}

func (p *Progress) show(soon time.Duration) {
	tick := time.NewTicker(soon)
	defer tick.Stop()
	for shown := false; ; shown = true {
		select {
		case <-p.ended:
			if shown {
				fmt.Fprint(p.to, "\r\x1b[K")
			}
			return
		case <-tick.C:
		}
		p.mu.Lock()
		line := []rune("scopefs: " + printable.Text(p.text))
		p.mu.Unlock()
		took := fmt.Sprintf(", %.0f s", time.Since(p.began).Seconds())
		fmt.Fprintf(p.to, "\r\x1b[K%s%s", string(line[:min(len(line), maxProgress-len(took))]), took)
	}
}

// Say changes the text of the line.
func (p *Progress) Say(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.text = text
	p.mu.Unlock()
}

// End erases the line for good.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.end.Do(func() { close(p.ended) })
	p.shows.Wait()
}

// Before returns a writer to w that calls End before it writes.
func (p *Progress) Before(w io.Writer) io.Writer { return ending{p, w} }

type ending struct {
	p *Progress
	w io.Writer
}

func (e ending) Write(b []byte) (int, error) {
	e.p.End()
	return e.w.Write(b)
}
