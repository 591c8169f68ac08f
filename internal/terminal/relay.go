package terminal

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/client"
)

// Question is what a run asks its user while the command's output is held.
type Question struct {
	Text    func(rows, width int) string // escaped: it may hold newlines
	Options []Option                     // the last one grants nothing: Ctrl-C is that
}

// Option is an answer to a Question: a letter, and what it does.
type Option struct {
	Key, Text string
	Grants    bool // something: it needs the code
}

// Ask asks the user, and returns the key of an option; "" when ctx ends without an answer.
type Ask func(context.Context, Question) string

// word is what the user types for the option.
func (o Option) word(secret string) string {
	if o.Grants {
		return o.Key + secret
	}
	return o.Key
}

// relay carries bytes between the user's terminal and a command's. During a question neither direction flows: the command
// can draw nothing, and gets no key. An answer that grants something ends with a random code, because a command can make
// some terminals type for it: a report of the window's title arrives as keys, and may arrive late.
type relay struct {
	run      *client.Run
	out      io.Writer
	turn     chan struct{} // has room for one: who writes to out, and the question
	keys     atomic.Pointer[chan byte]
	screen   screen
	wait     time.Duration // keys are dropped for so long after a question is shown: they were meant for the command
	randomly func() string
	resize   func()
}

func newRelay(run *client.Run, out io.Writer) *relay {
	return &relay{run: run, out: out, turn: make(chan struct{}, 1), wait: 700 * time.Millisecond, randomly: code,
		resize: func() { resize(run) }}
}

// code returns three random digits.
func code() string {
	n, err := rand.Int(rand.Reader, big.NewInt(1000))
	if err != nil { // cannot happen: crypto/rand
		panic(err)
	}
	return fmt.Sprintf("%03d", n)
}

// Write writes output of the command, after a question.
func (r *relay) Write(p []byte) (int, error) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.screen.follow(p)
	return r.out.Write(p)
}

// How long the output of a command that has stopped may take, and from when on none is to come.
const (
	settleTime = 500 * time.Millisecond
	quietTime  = 10 * time.Millisecond
)

// settle waits until the output of a command that has stopped is written: a screen that it has restored before, for example.
func (r *relay) settle() {
	for late := time.Now().Add(settleTime); time.Now().Before(late); time.Sleep(time.Millisecond) {
		more := false
		raw, err := r.run.TTY.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { more = typed(int(fd), int(quietTime.Milliseconds())) })
		}
		if err != nil || !more {
			break
		}
	}
	select {
	case r.turn <- struct{}{}:
		<-r.turn
	case <-time.After(settleTime): // the terminal does not take it, or a question is shown
	}
}

// tidy makes the modes of the user's terminal usual ones, while another program has it. again makes them the command's.
func (r *relay) tidy() (again func()) {
	again = func() {}
	select {
	case r.turn <- struct{}{}:
	case <-time.After(settleTime):
		return again
	}
	defer func() { <-r.turn }()
	usual, changed := r.screen.tidy()
	if !Is(r.out) || usual == "" {
		return again
	}
	r.show(usual)
	return func() {
		if Foreground(int(os.Stdin.Fd())) {
			r.turn <- struct{}{}
			r.show(changed)
			<-r.turn
			r.resize()
		}
	}
}

// aside writes a line of ours; false during a question.
func (r *relay) aside(to io.Writer, text string) bool {
	select {
	case r.turn <- struct{}{}:
	default:
		return false
	}
	defer func() { <-r.turn }()
	_, err := io.WriteString(to, text)
	return err == nil
}

// input passes keys on until in ends.
func (r *relay) input(in io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		if keys := r.keys.Load(); keys != nil {
			for _, b := range buf[:n] {
				select {
				case *keys <- b:
				default: // nobody types so fast
				}
			}
		} else if _, e := r.run.TTY.Write(buf[:n]); e != nil {
			return
		}
		if err != nil { // a terminal has no EOF: send the VEOF character, termios(3)
			_, _ = r.run.TTY.Write([]byte{4})
			return
		}
	}
}

// The sequences of ECMA-48 and xterm's ctlseqs around a question. take ends what the command may have begun: a sequence or
// string (CAN, ST), VT52 mode, synchronized output, margins, origin and insert mode, another character set, colours.
const (
	take   = "\x18\x1b\\\x1b<\x1b[?2026l"
	plain  = "\x1b[?69l\x1b[r\x1b[?6l\x1b[4l\x1b(B\x0f\x1b[0m\x1b[2J\x1b[H"
	enter  = "\x1b[?1049h" // saves the cursor and the screen
	leave  = "\x1b[?1049l"
	save   = "\x1b7" // on the alternate screen, which the command draws again
	remake = "\x1b[2J\x1b8"
)

// ask is an Ask. In the background the question waits: the keys are the shell's, and the command goes on.
func (r *relay) ask(ctx context.Context, q Question) string {
	stdin := int(os.Stdin.Fd())
	if !Foreground(stdin) {
		r.aside(r.out, "scopefs: a question waits: bring the run to the foreground: fg\r\n")
	}
	if !await(ctx, stdin) {
		return ""
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ""
	}
	defer func() { <-r.turn }()
	keys := make(chan byte, 256)
	r.keys.Store(&keys)
	defer r.keys.Store(nil)
	Flush(stdin)
	begin, end := enter, leave
	if r.screen.alternate {
		begin, end = save, remake
	}
	size := Size()
	secret := r.randomly()
	text := "scopefs asks. The program is held: it can neither draw this nor answer it.\n\n" + q.Text(int(size.Rows)-8, int(size.Cols)) + "\n"
	for _, o := range q.Options {
		text += fmt.Sprintf("  %-5s %s\n", o.word(secret), o.Text)
	}
	if lines(text, int(size.Cols)) >= int(size.Rows) { // a part of it would not be seen, and a command may resize some terminals
		return q.Options[len(q.Options)-1].Key
	}
	r.show(take + begin + plain + text + "Type one of these, and Enter: ")
	answer := r.answer(ctx, q, secret, keys)
	r.show(end)
	r.resize()
	return answer
}

// resize makes the command draw again: at SIGWINCH, which the kernel sends if the size differs.
func resize(run *client.Run) {
	size := Size()
	less := *size
	less.Rows = max(less.Rows-1, 1)
	_ = run.Resize(less)
	_ = run.Resize(*size)
}

// lines returns how many lines a text takes on a terminal.
func lines(text string, width int) (n int) {
	for line := range strings.Lines(text) {
		n += 1 + (len(line)-1)/width // at least: bytes are no fewer than columns
	}
	return n
}

func (r *relay) show(text string) {
	_, _ = io.WriteString(r.out, strings.ReplaceAll(text, "\n", "\r\n"))
}

// tries bounds the wrong answers to a question.
const tries = 3

// answer reads lines until one is an answer. Ctrl-C and the last wrong line decline.
func (r *relay) answer(ctx context.Context, q Question, secret string, keys <-chan byte) string {
	early := time.After(r.wait)
	line, wrong, escape, last := "", 0, false, q.Options[len(q.Options)-1].Key
	for {
		var key byte
		select {
		case <-early:
			early = nil
			continue
		case <-ctx.Done():
			return ""
		case key = <-keys:
		}
		switch {
		case early != nil:
		case key == 3:
			return last
		case key == 0x1b:
			escape = true
		case escape: // of an arrow key, the mouse or a report: it ends with a letter or a tilde
			escape = key == '[' || key == 'O' || key < 0x40
		case key == '\r' || key == '\n':
			for _, o := range q.Options {
				if line == o.word(secret) {
					return o.Key
				}
			}
			if line != "" {
				wrong++
			}
			if wrong == tries {
				return last
			}
			line = ""
			r.show("\nType one of these, and Enter: ")
		case key == 0x7f || key == 8:
			if line != "" {
				line = line[:len(line)-1]
				r.show("\b \b")
			}
		case key > ' ' && key < 0x7f && len(line) < 16:
			line += string(key)
			r.show(string(key))
		}
	}
}
