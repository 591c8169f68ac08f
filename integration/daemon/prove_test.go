package daemon

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestProveRedacted checks redacted proofs by scopefs and by the verifier of docs/examples, and forges them.
func TestProveRedacted(t *testing.T) {
	need.Once(t)
	t.Parallel()
	dir := t.TempDir()
	checker := filepath.Join(dir, "check-proof")
	out, err := exec.Command("go", "build", "-trimpath", "-o", checker, "github.com/scopefs/scopefs/docs/examples/check-proof").CombinedOutput()
	require.NoError(t, err, string(out))
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"secret/**\": read}}"})
	require.NoError(t, os.Mkdir(h.Scope("a", "secret"), 0o755))
	require.ErrorIs(t, syscall.Mkdir(h.View("a", "secret", "7"), 0o755), syscall.EACCES)
	var denial audit.Event
	h.Eventually("the denial is signed", func() bool {
		for _, e := range h.Events("a") {
			if e.Verdict == audit.Deny {
				denial = e
			}
		}
		_, _, code := h.Try("audit", "prove", fmt.Sprint(denial.Seq))
		return code == 0
	})
	key := h.Base + "/state/audit/key.pub"
	file := filepath.Join(dir, "proof")
	// check has both verifiers look at a proof, and returns what they print.
	check := func(p tree.Proof) (printed string, err error) {
		text, err := json.Marshal(p)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		printed, _, code := h.Try("audit", "check-proof", file, "--key", key)
		alone, err := exec.Command(checker, file, key).Output()
		require.Equal(t, code == 0, err == nil, "both verifiers agree")
		if err == nil {
			require.Equal(t, printed, string(alone))
		}
		return printed, err
	}
	prove := func(flags ...string) (p tree.Proof, text string) {
		text = h.Must(append([]string{"audit", "prove", fmt.Sprint(denial.Seq)}, flags...)...)
		require.NoError(t, json.Unmarshal([]byte(text), &p))
		return p, text
	}

	whole, _ := prove()
	printed, err := check(whole)
	require.NoError(t, err)
	var e audit.Event
	require.NoError(t, json.Unmarshal([]byte(printed), &e))
	e.Raw = denial.Raw
	assert.Equal(t, denial, e)

	redacted, text := prove("--redact", "path,rule", "--redact", "program")
	for _, secret := range []string{"secret", "salt\\\"", `"` + denial.Program + `"`} {
		assert.NotContains(t, text, secret)
	}
	printed, err = check(redacted)
	require.NoError(t, err)
	assert.Contains(t, printed, `"path":"sha256:`)
	assert.Contains(t, printed, `"op":"mkdir"`)

	shown := func(field string, from tree.Proof, as string) func(p *tree.Proof) {
		return func(p *tree.Proof) { p.Events[0].Shown[as] = from.Events[0].Shown[field] }
	}
	text0 := func(old, new string) func(p *tree.Proof) {
		return func(p *tree.Proof) {
			require.Contains(t, p.Events[0].Line, old)
			p.Events[0].Line = strings.Replace(p.Events[0].Line, old, new, 1)
		}
	}
	for name, forge := range map[string]func(p *tree.Proof){
		"a shown value": func(p *tree.Proof) {
			o := p.Events[0].Shown["path"]
			o.Value = "secret/8"
			p.Events[0].Shown["path"] = o
		},
		"a field that is not redacted": text0(`"op":"mkdir"`, `"op":"rmdir"`),
		"the verdict":                  text0(`"verdict":"deny"`, `"verdict":"allow"`),
		"two values exchanged":         func(p *tree.Proof) { shown("rule", whole, "path")(p); shown("path", whole, "rule")(p) },
		"two commitments exchanged":    func(p *tree.Proof) { text0(`"path":`, `"target":`)(p); shown("path", whole, "target")(p) },
		"a value in place of a commitment": func(p *tree.Proof) {
			text0(`,"path":"sha256:`, `,"path":"secret/8","was":"`)(p)
			delete(p.Events[0].Shown, "path")
		},
		"the newline":         text0("\n", ""),
		"a value of no field": shown("path", whole, "op"),
	} {
		forged := whole
		forged.Events = []tree.ProvedLine{whole.Events[0]}
		forged.Events[0].Shown = maps.Clone(whole.Events[0].Shown)
		forge(&forged)
		_, err := check(forged)
		require.Error(t, err, name)
	}
	_, said, code := h.Try("audit", "prove", fmt.Sprint(denial.Seq), "--redact", "verdict")
	assert.Equal(t, 2, code)
	assert.Contains(t, said, "want path, target, rule, program, detail")
}
