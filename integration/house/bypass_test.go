package house

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestToolsRunThroughTheDoor holds that no package can run a tool around
// tools.Set.Call. Each body builds within the package that it is about, so that
// what it names is there, and outside only the one that uses the door does.
func TestToolsRunThroughTheDoor(t *testing.T) {
	for name, c := range map[string]struct{ within, body, refused string }{
		"through the door": {"tools", `set, _ := tools.NewSet(tools.Gate{}, all...); _, _ = set.Call(context.Background(), tools.Call{Tool: "stat"})`, ""},
		"the function":     {"tools", `_, _ = all[0].run(context.Background(), tools.Env{}, nil)`, "unexported field run"},
		"a copy of it":     {"tools", `f := all[0].run; _ = f`, "unexported field run"},
		"by another set":   {"tools", `set, _ := tools.NewSet(tools.Gate{}, all...); _, _ = set.one(context.Background(), tools.Call{}, nil)`, "unexported method one"},
		"a literal":        {"tools", `_ = tools.Tool{run: nil}`, "unexported field run"},
		"an operation":     {"file", `_ = file.do[int, int]`, "undefined: file.do"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := fmt.Sprintf("import (\n\t\"context\"\n\n\t\"%[1]stools\"\n\t\"%[1]stools/file\"\n)\n\nvar _ = context.Background\nvar _ tools.Tool\nvar _ file.Files\n\nfunc bypass(all []tools.Tool) {\n\t%[2]s\n}\n", module, c.body)

			inside := "package " + c.within + "\n\n" + text
			for _, own := range map[string][]string{
				"tools": {"\t\"" + module + "tools\"\n", "\t\"" + module + "tools/file\"\n", "var _ file.Files\n", "tools."},
				"file":  {"\t\"" + module + "tools/file\"\n", "file."},
			}[c.within] {
				inside = strings.ReplaceAll(inside, own, "")
			}
			out, err := buildWith(t, map[string]string{"tools": "tools", "file": "tools/file"}[c.within], inside)
			require.NoError(t, err, "what the test names is not there: %s", out)

			out, err = buildWith(t, "integration/bypass", "package main\n\n"+text+"\nfunc main() { bypass(nil) }\n")
			if c.refused == "" {
				assert.NoError(t, err, "%s", out)
				return
			}
			assert.Error(t, err)
			assert.Contains(t, out, c.refused)
			assert.Equal(t, 2, strings.Count(out, "\n"), "the package, and one error: %s", out)
		})
	}
}

// buildWith builds a package of this module with a file more, which is not
// written to its directory.
func buildWith(t *testing.T, pkg, text string) (out string, err error) {
	t.Helper()
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	file, overlay := filepath.Join(t.TempDir(), "bypass.go"), filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(top, pkg, "zz_bypass.go"): file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o644))
	said, err := exec.Command("go", "build", "-overlay", overlay, "-o", os.DevNull, module+pkg).CombinedOutput()
	return string(said), err
}
