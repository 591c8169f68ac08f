package upstream

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/scopefs/scopefs/internal/mask"
	"github.com/scopefs/scopefs/tools"
)

const (
	maxTail   = 4 << 10 // bytes kept
	maxReason = 300     // bytes of the last line in an error
)

// tail is an io.Writer that keeps the end of a server's stderr and of its output
// that is no message.
type tail struct {
	mu   sync.Mutex
	text []byte
	mask *mask.Mask
}

// newTail returns a tail that redacts the values of env with 8 bytes or more. They
// may be secrets, and errors end up in transcripts.
func newTail(env map[string]string) *tail {
	return &tail{mask: mask.New(slices.Collect(maps.Values(env))...)}
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-maxTail):]...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

// last returns the last line that is not empty, redacted.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.text)
	line := string(text[bytes.LastIndexByte(text, '\n')+1:])
	return tools.Clip(tools.Clean(t.mask.Replace(line)), maxReason)
}

// explain returns err with the last line added.
func (t *tail) explain(err error) error {
	if last := t.last(); last != "" {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}
