package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// protectTool is a program that a user of the host runs in the agent's directory.
type protectTool struct {
	programs []string          // in bin/clients or on the host
	files    []string          // of the host, as for harness.Plant
	setUp    string            // a script of the host
	use      string            // a later one, which executes what the attacks write
	attacks  map[string]string // the text that plants, of each name that the program reads
}

// Texts that create the file $PLANTED or @PLANTED when the program executes them.
const (
	plantJSON  = `{"pre-commit": {"jobs": [{"run": "touch $PLANTED"}]}}`
	plantTOML  = "[[pre-commit.jobs]]\nrun = 'touch $PLANTED'\n"
	plantShell = "touch $PLANTED\n"
	plantNode  = "require('fs').writeFileSync(process.env.PLANTED, '')\n"
)

// protectTools returns the programs with the names of their configuration, from the source of
// the installed version where it has a list.
func protectTools(t *testing.T, clients string) map[string]protectTool {
	const repository = "git init -q -b main && git add . && git commit -q --allow-empty -m one\n"
	const commit = "echo x >>f && git add . && git commit -q -m two"
	lefthook := map[string]string{} // https://lefthook.dev/configuration
	for _, name := range []string{"lefthook", ".lefthook", ".config/lefthook", "lefthook-local", ".lefthook-local", ".config/lefthook-local"} {
		for _, form := range []string{"yml", "yaml", "json", "jsonc"} {
			lefthook[name+"."+form] = plantJSON
		}
		lefthook[name+".toml"] = plantTOML
	}
	source := func(file, pattern string) (names []string) {
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(harness.ReadAll(t, filepath.Join(clients, "node_modules", file)), -1) {
			names = append(names, found[1])
		}
		require.NotEmpty(t, names, file)
		return names
	}
	module := func(name, object string) string {
		switch form := filepath.Ext(name); form {
		case ".cjs", ".cts":
			return "module.exports = " + object
		case ".js", ".mjs", ".ts", ".mts":
			return "export default " + object
		}
		return object
	}
	hooks, staged := map[string]string{}, map[string]string{}
	for _, name := range source("simple-git-hooks/simple-git-hooks.js", `_getConfigFromFile\(projectRootPath, '([^']+)'\)`) {
		hooks[name] = module(name, `{"pre-commit": "touch $PLANTED"}`)
	}
	for _, name := range source("lint-staged/lib/configFiles.js", `'([^']*(?:lintstagedrc|lint-staged\.config)[^']*)'`) { // package.yaml is a source, as package.json
		staged[name] = module(name, `{"*": "touch @PLANTED"}`)
	}
	return map[string]protectTool{
		"lefthook": {[]string{"lefthook"}, []string{"lefthook.yml=pre-commit: {jobs: [{run: 'true'}]}"}, repository + "lefthook install -f >/dev/null && rm lefthook.yml", "lefthook run pre-commit --force", lefthook},
		"scripts of lefthook": {[]string{"lefthook"}, []string{"lefthook.yml=pre-commit: {scripts: {x.sh: {runner: sh}}}"}, repository + "lefthook install -f >/dev/null", commit, map[string]string{
			".lefthook/pre-commit/x.sh": plantShell, ".lefthook-local/pre-commit/x.sh": plantShell,
		}},
		"husky": {[]string{"husky"}, []string{".husky/pre-commit=true"}, repository + "husky", commit, map[string]string{
			".husky/pre-commit": plantShell, ".husky/commit-msg": plantShell, ".husky/_/h": plantShell, ".husky/_/post-commit": plantShell,
		}},
		"simple-git-hooks": {[]string{"simple-git-hooks"}, []string{"package.json={}"}, repository, "simple-git-hooks && " + commit, hooks},
		"lint-staged":      {[]string{"lint-staged"}, []string{"package.json={}", "f"}, repository, "echo x >>f && git add f && lint-staged", staged},
		"pre-commit": {[]string{"pre-commit"}, []string{".pre-commit-config.yaml=repos: []"}, repository + "pre-commit install >/dev/null", commit, map[string]string{
			".pre-commit-config.yaml": `repos: [{repo: local, hooks: [{id: x, name: x, language: system, entry: touch @PLANTED, always_run: true, pass_filenames: false}]}]`,
		}},
		"direnv": {[]string{"direnv"}, []string{".envrc=source_env_if_exists .envrc.private\nsource_env_if_exists .envrc.local\nlayout go\n"}, "direnv allow", "direnv exec . sh -c 'tool || true'", map[string]string{
			".envrc.private": plantShell, ".envrc.local": plantShell, ".direnv/go/bin/tool": "#!/bin/sh\n" + plantShell,
		}},
		"npm": {[]string{"npm"}, []string{`package.json={"scripts": {"test": "true"}}`}, "true", "npm test", map[string]string{".npmrc": "script-shell=./evil.sh\n"}},
		"yarn": {[]string{"yarn"}, []string{"package.json={}"}, "true", "yarn --version", map[string]string{
			".yarnrc": "yarn-path \"./evil.js\"\n", ".yarnrc.yml": "yarnPath: ./evil.js\n",
		}},
		"releases of yarn": {[]string{"yarn"}, []string{"package.json={}", ".yarnrc.yml=yarnPath: .yarn/releases/yarn-4.cjs", ".yarn/releases/yarn-4.cjs=0"}, "true", "yarn --version", map[string]string{
			".yarn/releases/yarn-4.cjs": plantNode,
		}},
	}
}

// TestProtectTools: programs of the host that read their configuration in the agent's directory
// execute nothing of what the agent writes. Each name is read: it is executed where nothing is
// protected.
func TestProtectTools(t *testing.T) {
	need.All(t, "programs of others from the npm registry")
	if _, err := os.Stat("../../bin/clients/stamp"); err != nil {
		need.Skip(t, "no programs in bin/clients: run .ci/clients: ", err)
	}
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	bin := filepath.Join(h.Base, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.Symlink(clients+"/npm/bin/npm-cli.js", bin+"/npm"))
	home := filepath.Join(h.Base, "home")
	require.NoError(t, os.Mkdir(home, 0o755))
	path := bin + ":" + clients + "/node/bin:" + clients + "/node_modules/.bin:" + os.Getenv("PATH")
	t.Setenv("PATH", path)
	for name, tool := range protectTools(t, clients) {
		for _, program := range tool.programs {
			need.Program(t, program)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := strings.ReplaceAll(name, " ", "-")
			planted := filepath.Join(h.Base, "planted-by-"+dir)
			run := func(dir, script string) string {
				cmd := exec.Command("sh", "-c", script)
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + path, "HOME=" + home, "PLANTED=" + planted, "GIT_CONFIG_NOSYSTEM=1", "NO_UPDATE_NOTIFIER=1",
					"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@y", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@y"}
				out, err := cmd.CombinedOutput()
				return fmt.Sprintf("%s: %v\n%s", script, err, out)
			}
			write := func(dir, name, text string) error {
				name = filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
					return err
				}
				return os.WriteFile(name, []byte(strings.ReplaceAll(text, "@PLANTED", planted)), 0o755)
			}
			executed := func() bool { return os.Remove(planted) == nil }
			for _, agent := range []string{"a", "free"} {
				harness.Plant(t, h.Scope(agent, dir), append(tool.files, "evil.js="+plantNode, "evil.sh=#!/bin/sh\n"+plantShell)...)
				require.NoError(t, os.Chmod(h.Scope(agent, dir, "evil.sh"), 0o755))
				require.NotContains(t, run(h.Scope(agent, dir), tool.setUp+" || echo FAILED"), "FAILED\n")
			}
			_ = executed()
			for file, text := range tool.attacks {
				assert.ErrorIs(t, write(h.View("a", dir), file, text), syscall.EACCES, file)
			}
			said := run(h.Scope("a", dir), tool.use)
			assert.False(t, executed(), said)

			free := h.Scope("free", dir)
			for file, text := range tool.attacks {
				before, missing := os.ReadFile(filepath.Join(free, file))
				require.NoError(t, write(h.View("free", dir), file, text))
				said := run(free, tool.use)
				assert.True(t, executed(), "%s is not read: %s", file, said)
				if missing != nil {
					require.NoError(t, os.Remove(filepath.Join(free, file)))
				} else {
					harness.Executable(t, filepath.Join(free, file), before)
				}
			}
		})
	}
}
