package terminal

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/client"
)

// shown is a terminal's output.
type shown struct {
	mu   sync.Mutex
	text string
}

func (s *shown) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	return len(p), nil
}

func (s *shown) has(t *testing.T, text string) {
	t.Helper()
	assert.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.text, text)
	}, time.Minute, time.Millisecond, text)
}

var asked = Question{
	Text:    func(int, int) string { return "what\n" },
	Options: []Option{{"o", "once", true}, {"n", "no", false}, {"q", "none", false}},
}

func TestRelayAsks(t *testing.T) {
	for name, c := range map[string]struct{ typed, want string }{
		"once":                {"o123\r", "o"},
		"no":                  {"n\r", "n"},
		"Ctrl-C":              {"o12\x03", "q"},
		"corrected":           {"o124\x7f3\r", "o"},
		"keys of an arrow":    {"\x1b[Ao123\r", "o"},
		"the mouse":           {"\x1b[<0;12;3Mo123\r", "o"},
		"Enter is no answer":  {"\r\r\r\r\ro123\r", "o"},
		"without the code":    {"o\ry\r1\r", "q"},
		"guesses":             {"o000\ro001\ro002\ro123\r", "q"},
		"a wrong one, then":   {"y\ro123\r", "o"},
		"another's key":       {"n123\rq\r", "q"},
		"a report as a title": {"\x1b]lo\x1b\\\rn\r", "n"},
	} {
		t.Run(name, func(t *testing.T) {
			ptmx, tty, err := pty.Open()
			require.NoError(t, err)
			defer ptmx.Close()
			defer tty.Close()
			in, typed := io.Pipe()
			out := &shown{}
			r := newRelay(&client.Run{TTY: ptmx}, out)
			r.wait, r.randomly, r.resize = 0, func() string { return "123" }, func() {}
			go r.input(in)
			said := make(chan string)
			go func() { said <- r.ask(t.Context(), asked) }()
			out.has(t, "Enter: ")
			wrote := make(chan struct{})
			go func() { defer close(wrote); _, _ = r.Write([]byte("DRAWN")) }()
			_, err = io.WriteString(typed, c.typed)
			require.NoError(t, err)
			assert.Equal(t, c.want, <-said)
			<-wrote
			question, after, _ := strings.Cut(out.text, leave)
			assert.NotContains(t, question, "DRAWN")
			assert.Equal(t, "DRAWN", after)
			_, err = io.WriteString(typed, "next\r")
			require.NoError(t, err)
			buf := make([]byte, 64)
			n, err := tty.Read(buf)
			require.NoError(t, err)
			assert.Equal(t, "next\n", string(buf[:n]), "no key of the question")
		})
	}
}

// TestRelayEarlyKeys: what was typed before the question could be read is for the command, and answers nothing.
func TestRelayEarlyKeys(t *testing.T) {
	r := newRelay(&client.Run{}, io.Discard)
	r.wait = time.Hour
	keys := make(chan byte, 16)
	for _, b := range []byte("o123\rq\r") {
		keys <- b
	}
	ctx, stop := context.WithCancel(t.Context())
	said := make(chan string)
	go func() { said <- r.answer(ctx, asked, "123", keys) }()
	assert.Eventually(t, func() bool { return len(keys) == 0 }, time.Minute, time.Millisecond)
	stop()
	assert.Empty(t, <-said)
}

// TestRelayTooSmall: a question of which a part is not seen is not asked.
func TestRelayTooSmall(t *testing.T) {
	long := asked
	long.Text = func(int, int) string { return strings.Repeat("x\n", 30) }
	r := newRelay(&client.Run{}, io.Discard)
	assert.Equal(t, "q", r.ask(t.Context(), long))
	assert.Equal(t, 4, lines("12345\n1\n\n", 4), "at least")
}

func TestScreen(t *testing.T) {
	for text, want := range map[string]bool{
		"\x1b[?1049h": true, "\x1b[?25;1049h x": true, "\x1b[?1049h\x1b[?1049l": false, "\x1b[?47h\x1bc": false, "\x1b[1049h": false,
		"\x1b[?1049h\x1b[0m\x1b]0;t\a": true, "\x1b[?10": false,
	} {
		var whole, parts screen
		whole.follow([]byte(text))
		for i := range text {
			parts.follow([]byte{text[i]})
		}
		assert.Equal(t, want, whole.alternate, "%q", text)
		assert.Equal(t, whole.alternate, parts.alternate, "%q", text)
	}
	for text, want := range map[string][2]string{
		"plain \x1b[1mbold":                      {},
		"\x1b[?1003;1006h":                       {"\x1b[?1003l", "\x1b[?1003h"}, // 1006 alone is a form
		"\x1b[?25l\x1b[?2004h\x1b[?1004h":        {"\x1b[?1004l\x1b[?2004l\x1b[?25h", "\x1b[?1004h\x1b[?2004h\x1b[?25l"},
		"\x1b[?1049h\x1b[?1000h\x1b[?1000;1049l": {},
		"\x1b[?1049h\x1b[?1000h\x1bc":            {},
		"\u009b?1000h \x9b?1004h":                {"\x1b[?1000l\x1b[?1004l", "\x1b[?1000h\x1b[?1004h"},
		"\x1b[>1u":                               {"\x1b[<9u\x1b[=0u", ""},
	} {
		var s screen
		s.follow([]byte(text))
		tidy, again := s.tidy()
		assert.Equal(t, want, [2]string{tidy, again}, "%q", text)
	}
}
