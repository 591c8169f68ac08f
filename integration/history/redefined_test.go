package history

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
)

// TestHeldRedefined: a view keeps the definition that it was mounted with. What it holds is listed and committed by that, into its
// directory, by the rules of now, whatever the definition says of changes since.
func TestHeldRedefined(t *testing.T) {
	held, ruled := "view: {changes: held}", fmt.Sprintf(holdRules, "direct")
	for name, c := range map[string]struct {
		before, after string
		want          string // of the file pack.json, after a commit
	}{
		"held, now by rule":            {held, ruled, "new\n"},
		"held, now kept":               {held, "view: {changes: kept}", "new\n"},
		"held, now direct":             {held, "view: {changes: direct}", "new\n"},
		"held, now elsewhere":          {held, held + "\ndir: %s", "new\n"},
		"held, now by rule, elsewhere": {held, ruled + "\ndir: %s", "new\n"},
		"held, now read-only":          {held, `view: {changes: kept, paths: {"pack.json": read}}`, "old"},
		"by rule, now held":            {ruled, held, "new\n"},
		"by rule, now held elsewhere":  {ruled, held + "\ndir: %s", "new\n"},
		"by rule, now kept":            {ruled, "view: {changes: kept}", "new\n"},
	} {
		t.Run(name, func(t *testing.T) {
			other := t.TempDir()
			require.NoError(t, os.Chmod(other, 0o777))
			h := harness.LayOut(t, map[string]string{"a": c.before})
			harness.Plant(t, h.Scope("a"), "pack.json=old")
			harness.Plant(t, other, "pack.json=other")
			k := started(h)
			k.run("a", "echo new >pack.json")
			after := c.after
			if strings.HasSuffix(after, "%s") {
				after = fmt.Sprintf(after, other)
			}
			h.Define("a", after)
			h.Must("reload")
			for of, changes := range map[string]*api.History{"all": k.client.HistoryOf("a"), "by rule": k.client.HeldOf("a")} {
				assert.Equal(t, []string{"changed pack.json"}, k.differences(changes), of)
			}
			assert.Regexp(t, `(?m)^changed .* pack.json$`, k.Must("diff", "a"))
			_, err := k.client.HeldOf("a").Commit(t.Context(), api.CommitOptions{})
			require.NoError(t, err)
			assert.Equal(t, c.want, read(t, h.Scope("a")+"/pack.json"))
			assert.Equal(t, "other", read(t, other+"/pack.json"))
			k.Must("down", "a")
			k.Must("up", "a")
			h.Unbroken()
		})
	}
}
