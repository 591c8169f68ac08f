package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestToolsRunThroughTheDoor holds that no package can run a tool around
// tools.Set.Call: the compiler does not let it. The first program shows that it
// is for this reason that the others do not build.
func TestToolsRunThroughTheDoor(t *testing.T) {
	for name, c := range map[string]struct{ body, says string }{
		"through the door": {`set, _ := tools.NewSet(tools.Gate{}, all...); _, _ = set.Call(context.Background(), tools.Call{Tool: "stat"})`, ""},
		"the function":     {`_, _ = all[0].run(context.Background(), tools.Env{}, nil)`, "run"},
		"a copy of it":     {`f := all[0].run; _ = f`, "run"},
		"by another set":   {`set, _ := tools.NewSet(tools.Gate{}, all...); _, _ = set.one(context.Background(), tools.Call{}, "stat", nil)`, "one"},
		"a literal":        {`_ = tools.Tool{run: nil}`, "run"},
		"the handlers":     {`_ = file.handlers`, "handlers"},
	} {
		t.Run(name, func(t *testing.T) {
			// Beside the other packages, for only there may it import them.
			dir, err := os.MkdirTemp(".", "bypass-")
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			text := "package main\n\nimport (\n\t\"context\"\n\n\t\"" + module + "tools\"\n\t\"" + module + "tools/file\"\n)\n\nfunc main() {\n\tall, _ := file.NewWorker(nil).Tools()\n\t_ = context.Background\n\t" + c.body + "\n}\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o644))
			out, err := exec.Command("go", "vet", "./"+dir).CombinedOutput()
			if c.says == "" {
				assert.NoError(t, err, "%s", out)
				return
			}
			assert.Error(t, err)
			assert.Regexp(t, `(undefined|unexported|unknown field).*`+c.says+`|`+c.says+`.*(undefined|unexported)`, string(out))
		})
	}
}
