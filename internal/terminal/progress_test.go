package terminal

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProgress: a line of progress is on a terminal alone, of one width, and is gone before the command prints. A quick command has
// none.
func TestProgress(t *testing.T) {
	ours, theirs, err := pty.Open()
	require.NoError(t, err)
	defer ours.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			if err != nil {
				return
			}
			lines <- string(b[:n])
		}
	}()
	quick := Show(theirs, time.Hour, "quick")
	quick.End()
	p := Show(theirs, time.Millisecond, "reading \x1b[2J")
	first := <-lines
	assert.Regexp(t, `^\r\x1b\[Kscopefs: reading \\`, first, "and nothing of what was quick")
	assert.NotContains(t, first, "\x1b[2J")
	p.Say(strings.Repeat("x", 1000))
	for line := first; !strings.Contains(line, "xxx"); {
		line = <-lines
	}
	var out bytes.Buffer
	var after strings.Builder
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(p.Before(&out), "answer")
		p.End()
		p.Say("late")
		written <- err
		theirs.Close()
	}()
	for text := range lines {
		after.WriteString(text)
	}
	require.NoError(t, <-written)
	assert.Equal(t, "answer", out.String())
	assert.True(t, strings.HasSuffix(after.String(), "\r\x1b[K"), "%q", after.String())
	for line := range strings.SplitSeq(after.String(), "\r\x1b[K") {
		assert.LessOrEqual(t, len(line), maxProgress)
	}
	assert.Nil(t, Show(&out, 0, "no terminal"))
	(*Progress)(nil).Say("x")
	_, err = (*Progress)(nil).Before(&out).Write(nil)
	assert.NoError(t, err)
}
