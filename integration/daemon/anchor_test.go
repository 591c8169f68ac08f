package daemon

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/integration/harness"
)

// The daemon gives the signed heads of its log to the operator's commands. A log that was written anew and signed with its
// own key does not have them.
func TestAnchors(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": ""})
	kept := filepath.Join(t.TempDir(), "head")
	settings := "log:\n  anchors:\n" +
		"    - {name: elsewhere, every: 20ms, command: [/bin/sh, -c, 'cat >\"$0.tmp\" && mv \"$0.tmp\" \"$0\"', " + kept + "]}\n" +
		"    - {name: broken, every: 20ms, command: [/bin/false]}\n"
	h.Put("scopefs.yaml", settings)
	h.Start()
	outcomes := func() (anchored, late int) {
		for _, e := range h.Events("") {
			if e.Event == audit.KindAudit && e.Outcome == audit.OutcomeAnchored && strings.HasPrefix(e.Detail, "elsewhere has the head of ") {
				anchored++
			}
			if e.Event == audit.KindAudit && e.Outcome == audit.OutcomeLate && strings.HasPrefix(e.Detail, "broken: ") {
				late++
			}
		}
		return anchored, late
	}
	h.Eventually("a head is kept, and the other one is late", func() bool {
		anchored, late := outcomes()
		return anchored > 0 && late == 1
	})
	before, _ := outcomes()
	h.Must("run", "a", "--", "true")
	h.Eventually("another one is kept", func() bool { n, _ := outcomes(); return n > before })
	// Without other events the lines about anchors are no reason for a head.
	settled := func() bool {
		n, _ := outcomes()
		time.Sleep(1500 * time.Millisecond) // the log signs each second
		again, _ := outcomes()
		return n == again
	}
	h.Eventually("heads are taken no more", settled)
	_, late := outcomes()
	assert.Equal(t, 1, late)
	h.Stop()

	dir := filepath.Join(h.Base, "state", "audit")
	head, err := os.ReadFile(kept)
	require.NoError(t, err)
	heads := func() proof.VerifyOptions {
		return proof.VerifyOptions{Heads: map[string]io.Reader{"kept": bytes.NewReader(head)}}
	}
	v, err := proof.Verify(t.Context(), dir, heads())
	require.NoError(t, err)
	assert.Equal(t, 1, v.Matched)
	for _, name := range []string{"tree", "00000001.tree", "head"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	segment := filepath.Join(dir, "00000001.jsonl")
	text, err := os.ReadFile(segment)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(segment, []byte(strings.Replace(string(text), `"exec"`, `"ecex"`, 1)), 0o600))
	h.Put("scopefs.yaml", "")
	h.Must("run", "a", "--", "true")
	_, err = proof.Verify(t.Context(), dir, proof.VerifyOptions{})
	require.NoError(t, err, "the log's own head is of what was written anew")
	_, err = proof.Verify(t.Context(), dir, heads())
	assert.ErrorContains(t, err, "kept: the head of")
}
