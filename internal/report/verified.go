package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/printable"
)

// Verified prints what a comparison of a log with its heads has found.
func Verified(w io.Writer, v audit.Verified, asJSON bool) error {
	if asJSON {
		return JSON(w, v)
	}
	c := v.Head.Counts
	fmt.Fprintf(w, "valid: %d lines are those that %s recorded\n", v.Head.Size-v.Removed, printable.Text(v.Head.Origin))
	fmt.Fprintf(w, "counts: %d denials, %d calls and requests begun, %d ended, %d with an unknown end, %d losses\n",
		c.Denied, c.Begun, c.Ended, c.Unknown, c.Lost)
	if v.Removed > 0 {
		fmt.Fprintf(w, "removed: the log has removed the %d lines before\n", v.Removed)
	}
	for _, gap := range v.Gaps {
		fmt.Fprintf(w, "lost: %s\n", printable.Text(gap))
	}
	if v.After > 0 {
		fmt.Fprintf(w, "not signed yet: the last %d lines\n", v.After)
	}
	if v.Older > 0 {
		fmt.Fprintf(w, "not compared: %d heads are older than the lines that are left\n", v.Older)
	}
	if v.Others > 0 {
		fmt.Fprintf(w, "not compared: %d heads are of other logs\n", v.Others)
	}
	if v.Cut > 0 {
		fmt.Fprintf(w, "not compared: %d heads end too early\n", v.Cut)
	}
	_, err := fmt.Fprintf(w, "heads from elsewhere that match: %d\n", v.Matched)
	return err
}

// Proof checks a proof of the file name by a log's public key, "" for the proof's own, and prints its lines. What vouches for
// them goes to note.
func Proof(out, note io.Writer, name string, text []byte, key string) error {
	var proof audit.Proof
	if err := json.Unmarshal(text, &proof); err != nil {
		return fmt.Errorf("%s: no proof of scopefs audit prove: %w", name, err)
	}
	head, err := proof.Check(key)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	redacted := 0
	for _, e := range proof.Events {
		line, fields, err := e.Text()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		redacted += len(fields)
		fmt.Fprintln(out, printable.Text(line))
	}
	if redacted > 0 {
		fmt.Fprintf(note, "scopefs: %d values are redacted: the lines have commitments to them, sha256:...\n", redacted)
	}
	_, err = fmt.Fprintf(note, "scopefs: %d of the %d lines that the log %s had when it signed the head\n", len(proof.Events), head.Size, printable.Text(head.Origin))
	return err
}
