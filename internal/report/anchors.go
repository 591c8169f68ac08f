package report

import (
	"fmt"
	"io"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
)

// Anchors are the anchors of the log of daemons.
type Anchors []api.Anchor

// Print prints a line for each anchor.
func (list Anchors) Print(w io.Writer) (err error) {
	for _, a := range list {
		name, state := a.Name, "no head yet"
		if a.Base != "" {
			name += " of " + a.Base
		}
		if !a.Kept.IsZero() {
			state = fmt.Sprintf("has the head of %d lines, %s ago", a.Size, time.Since(a.Kept).Round(time.Second))
		}
		if a.Late {
			state = "LATE, " + state
		}
		if a.Error != "" {
			state += ": " + a.Error
		}
		if _, err = fmt.Fprintf(w, "anchor %s: %s\n", printable.Text(name), printable.Text(state)); err != nil {
			return err
		}
	}
	return nil
}
