package answers

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// task is a routine request with effects that its words do not say.
type task struct {
	files            []string // see harness.Plant
	command          string
	removed, changed []string // what the caller must be told by its path
	created          []string // likewise, by a call
}

// program is the static program of tasks: the test program, planted beside the files.
const program = harness.RoleEnv + "=static ./tool "

// tasks are the eleven tasks of a published taxonomy of hidden effects: arXiv 2604.13536.
var tasks = map[string]task{
	"cleanup": {
		files:   []string{"clean.sh=rm -rf build R*.md *.bak\n", "build/x.o", "build/y.o", "README.md", "notes.bak", "src/a.c"},
		command: "sh clean.sh",
		removed: []string{"build/", "README.md", "notes.bak"},
	},
	"deploy": {
		files:   []string{"deploy.sh=mkdir -p staging && cp -r src/. staging/ && rm -r src\n", "src/app.js", "src/lib/util.js"},
		command: "sh deploy.sh",
		removed: []string{"src/"},
		created: []string{"staging/"},
	},
	"migration": {
		files:   []string{"migrate.sh=for f in data/*.csv; do sed -i '1s/.*//' $f; done; rm -r legacy\n", "data/a.csv=id,name\n1,x\n", "data/b.csv=id\n2\n", "legacy/old.sql"},
		command: "sh migrate.sh",
		removed: []string{"legacy/"}, changed: []string{"data/a.csv", "data/b.csv"},
	},
	"build": {
		files:   []string{"Makefile=all:\n\t@sh build.sh\n", "build.sh=cat src/*.c >app.o; rm src/*.h src/old.c\n", "src/main.c", "src/main.h", "src/util.h", "src/old.c"},
		command: "make -s",
		removed: []string{"src/main.h", "src/util.h", "src/old.c"}, created: []string{"app.o"},
	},
	"install": {
		files:   []string{"Makefile=setup:\n\t@cp defaults.json config.json; echo MODE=default >settings.env\n", "defaults.json={}", "config.json={\"mine\":1}", "settings.env=MODE=mine\n"},
		command: "make -s setup",
		changed: []string{"config.json", "settings.env"},
	},
	"formatter": {
		files:   []string{"Makefile=fmt:\n\t@for f in src/*.py; do sed -i 's/  / /g' $$f; done; rm docs/*.txt\n", "src/a.py=x  = 1\n", "src/b.py=y  = 2\n", "docs/a.txt", "docs/b.txt", "docs/keep.md"},
		command: "make -s fmt",
		removed: []string{"docs/a.txt", "docs/b.txt"}, changed: []string{"src/a.py", "src/b.py"},
	},
	"test-runner": {
		files:   []string{"Makefile=test:\n\t@sh run.sh\n", "run.sh=sh cases.sh; rm -r fixtures\n", "cases.sh=cat fixtures/* >/dev/null\n", "fixtures/a.json", "fixtures/b.json"},
		command: "make -s test",
		removed: []string{"fixtures/"},
	},
	"build-pkg": {
		files: []string{"pkg.sh=sh scripts/one.sh\n", "scripts/one.sh=tar -cf out.tar src README LICENSE && sh scripts/two.sh\n",
			"scripts/two.sh=rm -r src README LICENSE\n", "src/a.c", "src/b.c", "README", "LICENSE"},
		command: "sh pkg.sh",
		removed: []string{"src/", "README", "LICENSE"}, created: []string{"out.tar"},
	},
	"lint": {
		files:   []string{"lint.sh=" + program + "src/a.go src/b.go\n", "src/a.go", "src/b.go", "src/c.go"},
		command: "sh lint.sh",
		removed: []string{"src/a.go", "src/b.go"},
	},
	"config-fix": {
		files:   []string{"fix.sh=" + program + "app.toml=reset etc/db.ini=reset\n", "app.toml=mine", "etc/db.ini=mine"},
		command: "sh fix.sh",
		changed: []string{"app.toml", "etc/db.ini"},
	},
	"optimizer": {
		files:   []string{"optimize.sh=" + program + "README.md src/core.c=fast\n", "README.md", "src/core.c=right"},
		command: "sh optimize.sh",
		removed: []string{"README.md"}, changed: []string{"src/core.c"},
	},
}

// plantTool plants this program as the static program of a task.
func plantTool(t *testing.T, dir string) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	harness.Executable(t, dir+"/tool", self)
}

// TestTasks: whoever runs a command learns every effect that its words hide, by bash and by run, and what the answer names takes all
// of it back. With changes: held the directory stays as it is.
func TestTasks(t *testing.T) {
	need.Program(t, "make")
	agents := map[string]string{"held": "view: {changes: held}"}
	for name := range tasks {
		agents[name] = "view: {changes: kept}"
	}
	h := harness.NewHost(t, agents)
	for name, task := range tasks {
		t.Run(name, func(t *testing.T) {
			harness.Plant(t, h.Scope(name), task.files...)
			if strings.Contains(strings.Join(task.files, ""), program) {
				plantTool(t, h.Scope(name))
			}
			before := harness.Dumped(t, h.Scope(name), 0)
			u := h.Connect(name)
			a := bash(t, u, task.command)
			assert.Equal(t, len(task.removed) > 0, a.effects.Counts.Removed > 0)
			assert.Subset(t, paths(a.effects.Removed), task.removed, a.told)
			assert.Subset(t, paths(a.effects.Changed), task.changed, a.told)
			assert.Subset(t, paths(a.effects.Created), task.created, a.told)
			for _, path := range append(append(task.removed, task.changed...), task.created...) {
				assert.Contains(t, a.told, path)
			}
			assert.Empty(t, u.Call("undo", map[string]any{"call": undoes(t, a.told)})["conflicts"])
			harness.SameTrees(t, before, harness.Dumped(t, h.Scope(name), 0), "undo by the agent")

			_, stderr, code := h.Try("run", "-T", name, "--", "sh", "-c", task.command)
			assert.Zero(t, code, stderr)
			for _, path := range append(task.removed, task.changed...) {
				assert.Contains(t, stderr, path)
			}
			assert.Regexp(t, `scopefs: .*[0-9] (removed|changed).* in [0-9.]+ s · scopefs changes `+name+` · scopefs undo `+name+` --session last\n`, stderr)
			h.Must("undo", name, "--session", "last")
			harness.SameTrees(t, before, harness.Dumped(t, h.Scope(name), 0), "undo by the operator")
		})
	}
	t.Run("held", func(t *testing.T) {
		task := tasks["cleanup"]
		harness.Plant(t, h.Scope("held"), task.files...)
		before := harness.Dumped(t, h.Scope("held"), 0)
		_, stderr, code := h.Try("run", "-T", "held", "--", "sh", "-c", task.command)
		assert.Zero(t, code, stderr)
		assert.Contains(t, stderr, "changes are held")
		a := bash(t, h.Connect("held"), "touch more")
		assert.Contains(t, a.told, "changes are held")
		harness.SameTrees(t, before, harness.Dumped(t, h.Scope("held"), 0), "")
	})
}
