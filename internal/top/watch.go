package top

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/tools/approvals"
)

// watched returns the changes of approvals. The channel is closed when the watch has
// ended, and err then says why.
func watched(ctx context.Context, client *api.Daemons) (changes <-chan approvals.Update, err func() error) {
	c := make(chan approvals.Update)
	var why error
	go func() {
		defer close(c)
		why = client.WatchApprovals(ctx, func(change approvals.Update) error {
			select {
			case c <- change:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	return c, func() error { return why }
}

// WatchLines is the watch for programs. At the end of standard input it takes no more
// decisions.
func WatchLines(ctx context.Context, client *api.Daemons, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, why := watched(ctx, client)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(in); scan.Scan(); {
			select {
			case lines <- scan.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var err error
		select {
		case c, ok := <-changes:
			if !ok {
				return why()
			}
			err = report.Line(out, c)
		case line, ok := <-lines:
			if !ok {
				lines = nil
				continue
			}
			err = report.Line(out, decideLine(ctx, client, line))
		}
		if err != nil {
			return err
		}
	}
}

// decided is the answer to a line of WatchLines.
type decided struct {
	ID       string              `json:"id"`
	Error    string              `json:"error,omitempty"`
	Approval *approvals.Approval `json:"approval,omitempty"`
}

func decideLine(ctx context.Context, client *api.Daemons, line string) decided {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	id, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	p, err := approvals.Approval{}, error(nil)
	switch {
	case id == "":
		err = fmt.Errorf("%q is no decision: want y, n, a, s or p, an id, and for p a duration and a pattern", line)
	case word == "p":
		length, pattern, _ := strings.Cut(strings.TrimSpace(rest), " ")
		p, err = standPattern(ctx, client, id, "", pattern, length)
	case word == "n":
		p, err = client.Deny(ctx, id, api.DecideRequest{Reason: rest})
	default:
		p, err = decideKey(ctx, client, id, strings.TrimSpace(rest), word)
	}
	if err != nil {
		return decided{ID: id, Error: err.Error()}
	}
	return decided{ID: id, Approval: &p}
}

// decideKey makes the decision of a key that needs nothing else, about a call with a hash; "": any.
func decideKey(ctx context.Context, client *api.Daemons, id, shown, key string) (approvals.Approval, error) {
	how := api.DecideRequest{Shown: shown}
	switch key {
	case "y":
	case "n":
		return client.Deny(ctx, id, how)
	case "a":
		how.Standing = &approvals.Terms{}
	case "s":
		how.Standing = &approvals.Terms{Session: true}
	default:
		return approvals.Approval{}, fmt.Errorf("%q is no decision: want y, n, a, s or p", key)
	}
	return client.Approve(ctx, id, how)
}

// standPattern makes a standing approval. length is a duration or "always".
func standPattern(ctx context.Context, client *api.Daemons, id, shown, pattern, length string) (approvals.Approval, error) {
	terms := approvals.Terms{Pattern: strings.TrimSpace(pattern)}
	if terms.Pattern == "" {
		return approvals.Approval{}, errors.New("the pattern is empty")
	}
	if length != "always" {
		var err error
		if terms.For, err = time.ParseDuration(length); err != nil || terms.For <= 0 {
			return approvals.Approval{}, fmt.Errorf("%q is no time: write one such as 1h, or always", length)
		}
	}
	return client.Approve(ctx, id, api.DecideRequest{Standing: &terms, Shown: shown})
}

// typedAhead is for how long after a call is shown keys are dropped: they were meant for
// what was there before.
const typedAhead = 700 * time.Millisecond

// A watch is the watch on a terminal.
type watch struct {
	client *api.Daemons
	out    io.Writer // turns newlines to what a raw terminal needs
	keys   <-chan byte
	raw    *terminal.Raw

	waiting []string           // ids, the oldest first
	shown   approvals.Approval // "": none
	since   time.Time          // when it was shown
}

var errQuit = errors.New("quit")

// WatchKeys is the watch on a terminal.
func WatchKeys(ctx context.Context, client *api.Daemons, in *os.File, out io.Writer) error {
	ctx, cancel := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGHUP) // the terminal is to be restored
	defer cancel()
	changes, why := watched(ctx, client)
	keys := make(chan byte)
	typed := terminal.Input(in)
	go func() { // a read of a terminal cannot be cancelled: it ends with the process
		defer close(keys)
		buf := make([]byte, 64)
		for {
			n, err := typed.Read(buf)
			for _, b := range buf[:n] {
				select {
				case keys <- b:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	w := &watch{client: client, out: rawWriter{out}, keys: keys, raw: &terminal.Raw{FD: int(in.Fd())}}
	w.raw.Enter(nil)
	defer w.raw.Restore()
	fmt.Fprintln(w.out, "Waiting for calls that need approval. q quits.")
	for {
		w.next(ctx)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case c, ok := <-changes:
			if !ok {
				return why()
			}
			w.change(c)
		case key, ok := <-keys:
			if !ok {
				return nil
			}
			if err := w.key(ctx, key); errors.Is(err, errQuit) {
				return nil
			}
		}
	}
}

// change takes in a change of an approval.
func (w *watch) change(c approvals.Update) {
	id := c.Approval.ID
	if c.Outcome == approvals.Waits {
		if id == w.shown.ID || slices.Contains(w.waiting, id) {
			return // a daemon is watched again
		}
		w.waiting = append(w.waiting, id)
		if w.shown.ID != "" {
			fmt.Fprintf(w.out, "  (%d more waiting)\n", len(w.waiting))
		}
		return
	}
	if i := slices.Index(w.waiting, id); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		return
	}
	if id == w.shown.ID {
		fmt.Fprintf(w.out, "  %s meanwhile, not here: %s\n\n", c.Outcome, id)
		w.shown = approvals.Approval{}
	}
}

// next shows the next call that waits, unless one is shown.
func (w *watch) next(ctx context.Context) {
	for w.shown.ID == "" && len(w.waiting) > 0 {
		id := w.waiting[0]
		w.waiting = w.waiting[1:]
		p, err := w.client.Approval(ctx, id)
		if err != nil || p.State != approvals.Waits { // decided meanwhile
			continue
		}
		w.shown = p
		w.show(report.MaxShownLines)
	}
}

// show prints the call and the keys. Keys count from then on.
func (w *watch) show(lines int) {
	width, _, err := term.GetSize(w.raw.FD)
	if err != nil {
		width = 80
	}
	fmt.Fprint(w.out, report.Call(w.shown, lines, width))
	fmt.Fprint(w.out, "[y]es [n]o [a]lways this call, for the [s]ession, [p]attern, [v]iew all, [l]ater, [q]uit: ")
	w.since = time.Now()
}

// key does what a key says about the call that is shown.
func (w *watch) key(ctx context.Context, key byte) error {
	const interrupt, end = 3, 4 // Ctrl-C, Ctrl-D
	id := w.shown.ID
	switch {
	case key == 'q' || key == interrupt || key == end:
		fmt.Fprintln(w.out)
		return errQuit
	case id == "" || time.Since(w.since) < typedAhead:
		return nil
	case key == 'v':
		fmt.Fprintln(w.out)
		w.show(0)
		return nil
	case key == 'l':
		fmt.Fprintf(w.out, "later: scopefs approvals show %s\n\n", id)
		w.shown = approvals.Approval{}
		return nil
	}
	var p approvals.Approval
	var err error
	switch key {
	case 'y', 'n', 'a', 's':
		fmt.Fprintf(w.out, "%c\n", key)
		p, err = decideKey(ctx, w.client, id, w.shown.Hash, string(key))
	case 'p':
		fmt.Fprintln(w.out)
		p, err = w.pattern(ctx, id)
	default:
		return nil
	}
	w.shown = approvals.Approval{}
	if err == nil {
		fmt.Fprintf(w.out, "  %s\n\n", report.Decision(p))
		return nil
	}
	fmt.Fprintf(w.out, "  %s\n\n", printable.Lines(err.Error()))
	w.waiting = append([]string{id}, w.waiting...) // next leaves it out if it waits no more
	return nil
}

// pattern asks for a pattern and how long it holds.
func (w *watch) pattern(ctx context.Context, id string) (approvals.Approval, error) {
	line := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keyReader{ctx, w.keys}, w.out.(rawWriter).to}, "  pattern: ")
	pattern, err := line.ReadLine()
	if err != nil {
		return approvals.Approval{}, errors.New("no pattern")
	}
	line.SetPrompt("  for how long (1h, always): ")
	length, err := line.ReadLine()
	if err != nil {
		return approvals.Approval{}, errors.New("no pattern")
	}
	return standPattern(ctx, w.client, id, w.shown.Hash, pattern, strings.TrimSpace(length))
}

// keyReader reads the keys that a channel brings.
type keyReader struct {
	ctx  context.Context
	keys <-chan byte
}

func (r keyReader) Read(p []byte) (int, error) {
	select {
	case key, ok := <-r.keys:
		if !ok {
			return 0, io.EOF
		}
		p[0] = key
		return 1, nil
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

// rawWriter writes to a terminal in raw mode.
type rawWriter struct{ to io.Writer }

func (w rawWriter) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.to, strings.ReplaceAll(string(p), "\n", "\r\n"))
	return len(p), err
}
