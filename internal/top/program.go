package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/terminal"
)

// A message is an event for the model: a key, a size, or the result of a command.
type message any

// A command runs in a goroutine of its own and returns a message.
type command func() message

type (
	keyMsg  string
	sizeMsg struct{ width, height int }
	quitMsg struct{}
)

func quit() message { return quitMsg{} }

// Control sequences of a terminal: the other screen, without a cursor and without a break of lines that are too long, and
// with marks around what is pasted (xterm's ctlseqs).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h"
	leaveScreen = "\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	endOfLine   = "\x1b[K"
)

// show draws the model on a terminal until it quits or a signal ends it. The model gets keys, sizes and the results of its
// commands, one after another.
func show(ctx context.Context, m *model, in *os.File, out io.Writer) error {
	life, cancel := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGHUP, unix.SIGINT) // the terminal is to be restored
	defer cancel()
	resized := make(chan os.Signal, 1)
	resized <- unix.SIGWINCH
	raw := &terminal.Raw{FD: int(in.Fd())}
	raw.Enter(func() {
		select {
		case resized <- unix.SIGWINCH: // draws again
		default:
		}
	})
	defer raw.Restore()
	drawing := false // in the background the screen is the shell's
	defer func() {
		if drawing {
			fmt.Fprint(out, leaveScreen)
		}
	}()
	messages := make(chan message)
	send := func(msg message) {
		select {
		case messages <- msg:
		case <-life.Done():
		}
	}
	start := func(c command) {
		if c != nil {
			go func() { send(c()) }()
		}
	}
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	go readKeys(terminal.Input(in), send)
	start(m.refresh)
	for drawn := ""; ; {
		select {
		case <-life.Done():
			return ctx.Err()
		case <-resized:
			if width, height, err := term.GetSize(raw.FD); err == nil {
				m.update(sizeMsg{width, height})
			}
			drawn = ""
		case msg := <-messages:
			if _, end := msg.(quitMsg); end {
				return nil
			}
			start(m.update(msg))
		}
		before := drawing
		if drawing = terminal.Foreground(raw.FD); drawing && !before {
			fmt.Fprint(out, enterScreen)
			drawn = ""
		}
		if text := m.draw(); drawing && text != drawn {
			drawn = text
			lines := strings.Split(text, "\n")
			lines = lines[max(0, len(lines)-m.height):]
			fmt.Fprint(out, home+strings.Join(lines, endOfLine+"\r\n")+endOfLine)
		}
	}
}

// readKeys sends the keys of a terminal. A read of a terminal cannot be cancelled: it ends with the process.
func readKeys(in io.Reader, send func(message)) {
	var k keys
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		for _, key := range k.parse(string(buf[:n])) {
			send(keyMsg(key))
		}
		if err != nil {
			send(quitMsg{})
			return
		}
	}
}

// keys parses what a terminal sends. What is pasted is no key.
type keys struct {
	pasting bool
	begun   string // a control sequence that the last read has cut
}

// maxSequence limits a control sequence, in bytes. Those of keys are shorter.
const maxSequence = 32

// parse returns the keys in the bytes of one read: printable ASCII characters, and names of others that the model knows.
func (k *keys) parse(text string) (all []string) {
	text, k.begun = k.begun+text, ""
	for text != "" {
		key := ""
		switch c := text[0]; {
		case c == 0x1b:
			key, text = k.escape(text[1:])
		case c == '\r':
			key, text = "enter", text[1:]
		case c == ' ':
			key, text = "space", text[1:]
		case c == 3:
			key, text = "ctrl+c", text[1:]
		case c > ' ' && c < 0x7f:
			key, text = text[:1], text[1:]
		default:
			text = text[1:]
		}
		if key != "" && !k.pasting {
			all = append(all, key)
		}
	}
	return all
}

// escape returns the key of a control sequence, and what follows it. An escape that ends a read is the key itself.
func (k *keys) escape(text string) (key, rest string) {
	if text == "" {
		return "esc", ""
	}
	if text[0] != '[' && text[0] != 'O' { // with Alt
		return "", text[1:]
	}
	end := strings.IndexFunc(text[1:], func(c rune) bool { return c >= '@' && c <= '~' })
	if end < 0 {
		if len(text) < maxSequence {
			k.begun = "\x1b" + text
		}
		return "", ""
	}
	sequence, rest := text[1:end+2], text[end+2:]
	switch sequence {
	case "200~", "201~":
		k.pasting = sequence == "200~"
		return "", rest
	}
	return map[string]string{"A": "up", "B": "down", "5~": "pgup", "6~": "pgdown"}[sequence], rest
}
