package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/witness"
)

// Verified prints what a comparison of a log with its heads has found, which witnesses have signed them, and how far a quorum of those
// that were given has.
func Verified(w io.Writer, v proof.Verified, own bool, by witness.Keys, quorum int, asJSON bool) error {
	if asJSON {
		return JSON(w, struct {
			proof.Verified
			Witnesses witness.Keys
		}{v, by})
	}
	c := v.Head.Counts
	valid := "valid"
	if n, _ := by.Count(true); own && v.Matched == 0 && n == 0 {
		valid += " by this log's own key"
	}
	fmt.Fprintf(w, "%s: %d lines are those that %s recorded\n", valid, v.Head.Size-v.Removed, printable.Text(v.Head.Origin))
	fmt.Fprintf(w, "counts: %d denials, %d calls and requests begun, %d ended, %d with an unknown end, %d losses\n",
		c.Denied, c.Begun, c.Ended, c.Unknown, c.Lost)
	if v.Removed > 0 {
		fmt.Fprintf(w, "removed: the log has removed the %d lines before\n", v.Removed)
	}
	for _, gap := range v.Gaps {
		fmt.Fprintf(w, "lost: %s\n", printable.Text(gap))
	}
	for _, lines := range v.Foreign {
		fmt.Fprintf(w, "not its own: %s\n", printable.Text(lines))
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
	signed(w, "", by)
	if event := by.Quorum(quorum); event > 0 && quorum > 1 {
		fmt.Fprintf(w, "a quorum of %d of them has signed up to event %d\n", quorum, event)
	}
	_, err := fmt.Fprintf(w, "heads from elsewhere that match: %d\n", v.Matched)
	return err
}

// signed prints which witnesses have signed a head, and which of those that were given have not.
func signed(w io.Writer, prefix string, by witness.Keys) {
	for _, k := range by {
		name := printable.Text(cmp.Or(k.Name, "given")) + ", " + printable.Text(k.Key)
		switch {
		case k.Event > 0:
			fmt.Fprintf(w, "%switness: %s has signed up to event %d, %s\n", prefix, name, k.Event, k.Time.Format(time.RFC3339))
		case k.Lines > 0:
			fmt.Fprintf(w, "%switness: %s has signed the head of %d lines, %s\n", prefix, name, k.Lines, k.Time.Format(time.RFC3339))
		case k.Name == "":
			fmt.Fprintf(w, "%switness: %s has signed nothing here\n", prefix, name)
		}
	}
	if n, of := by.Count(true); of > 0 {
		fmt.Fprintf(w, "%switnesses that were given and have signed: %d of %d\n", prefix, n, of)
	}
}

// Proof checks a proof of the file name by a log's public key, "" for the proof's own, and prints its lines. What vouches for
// them goes to note, with the witnesses that have signed the head.
func Proof(out, note io.Writer, name string, text []byte, key string, by witness.Keys) error {
	var proof tree.Proof
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
	by.Signed([]byte(proof.Head), head.Size, 0)
	signed(note, "scopefs: ", by)
	verdict := "valid"
	if key == "" {
		verdict = "by the proof's own key"
	}
	_, err = fmt.Fprintf(note, "scopefs: "+verdict+": %d of the %d lines that the log %s had when it signed the head\n",
		len(proof.Events), head.Size, printable.Text(head.Origin))
	return err
}
