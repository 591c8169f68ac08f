package terminal

import (
	"fmt"
	"io"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/printable"
)

// notes prints what the daemon has to say while a command runs. A command that draws on
// its terminal is not disturbed: its notes are printed at its end.
type notes struct {
	to     io.Writer
	run    *client.Run
	remedy func(client.Note) string
	relay  *relay
	kept   []string
}

func (n *notes) note(note client.Note) {
	text := "scopefs: " + printable.Text(note.Note)
	if remedy := n.remedy(note); remedy != "" {
		text += ": " + printable.Text(remedy)
	}
	switch {
	case n.run.TTY == nil:
		fmt.Fprintln(n.to, text)
	case inLines(n.run) && n.relay.aside(n.to, text+"\r\n"): // our terminal is in raw mode
	default:
		n.kept = append(n.kept, text)
	}
}

// rest prints what was kept, on a terminal that is not in raw mode any more.
func (n *notes) rest() {
	for _, text := range n.kept {
		fmt.Fprintln(n.to, text)
	}
	n.kept = nil
}

// inLines reports whether a command reads its terminal line by line (ICANON, termios(3)).
func inLines(run *client.Run) bool {
	raw, err := run.TTY.SyscallConn()
	if err != nil {
		return false
	}
	lines := false
	err = raw.Control(func(fd uintptr) { lines = canonical(int(fd)) })
	return err == nil && lines
}
