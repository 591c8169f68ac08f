package upstream

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxTail   = 4 << 10 // bytes kept of what a server writes beside its messages
	maxReason = 300     // bytes of that in an error
)

// tail is the end of what was written to it, without the secrets that the
// server was given.
type tail struct {
	mu      sync.Mutex
	text    []byte
	secrets []string
}

// newTail returns a tail that hides the values of env which may be a secret:
// an error goes into transcripts, whatever the agent could find out itself.
func newTail(env map[string]string) *tail {
	t := &tail{}
	for _, v := range env {
		if len(v) >= 8 {
			t.secrets = append(t.secrets, v, "***")
		}
	}
	return t
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-maxTail):]...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

// last returns the last line that is not empty.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.text)
	line := string(text[bytes.LastIndexByte(text, '\n')+1:])
	return tools.Clip(tools.Clean(strings.NewReplacer(t.secrets...).Replace(line)), maxReason)
}

// explain adds the last line to err.
func (t *tail) explain(err error) error {
	if last := t.last(); last != "" {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}
