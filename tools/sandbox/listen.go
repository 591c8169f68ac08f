package sandbox

import (
	"fmt"
	"net"
	"os"

	"github.com/scopefs/scopefs/internal/descriptors"
)

// takeListener checks and stores the listening socket that came with OpReady. Init made
// it before any command: it is in the sandbox's network, and no process of the sandbox
// has it. The caller holds mu.
func (s *Session) takeListener(files []*os.File) error {
	want := 0
	if s.spec.Proxy {
		want = 1
	}
	if len(files) != want {
		return fmt.Errorf("init sent %d descriptors when it was ready", len(files))
	}
	if want == 0 {
		return nil
	}
	if err := control(files[0], isProxy); err != nil {
		return fmt.Errorf("init sent no listening socket: %w", err)
	}
	l, err := net.FileListener(files[0]) // a duplicate
	if err != nil {
		return fmt.Errorf("listening socket: %w", err)
	}
	descriptors.Close(files)
	s.listens = l
	return nil
}
