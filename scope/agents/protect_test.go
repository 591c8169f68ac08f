package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/protect"
)

// TestProtect: each list is read, has a description, and makes a policy. Their patterns
// match in every directory and so prevent no move of one that is not protected. Each tool has
// a source.
func TestProtect(t *testing.T) {
	for _, p := range protect.Builtin() {
		assert.NotEmpty(t, p.Description, p.Name)
		def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ["+p.Name+"]\n---\n"))
		require.NoError(t, err, p.Name)
		policy, err := scope.Compile(def.View.PolicySpec())
		require.NoError(t, err, p.Name)
		assert.False(t, policy.Uniform(), p.Name)
		assert.True(t, policy.Move("a/b").Allow, p.Name)
		for _, pattern := range p.Paths {
			assert.Regexp(t, `^(\*\*/[^/]+(/[^/]+)?|hk[^/]+)$`, pattern)
		}
		for _, tool := range p.Tools {
			assert.Regexp(t, `^(https?://[^/]+/.*|docs/agents.md)$`, tool.Source, "%s: %s", p.Name, tool.Name)
			assert.NotEmpty(t, tool.Paths, "%s: %s", p.Name, tool.Name)
		}
	}
	def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ['*', editor]\n---\n"))
	require.NoError(t, err)
	assert.Len(t, def.View.Protect, 8, "git-hooks has names that hold everywhere, too")
	assert.True(t, def.View.Git.Hooks)
	assert.Contains(t, def.View.Git.Config, "core.bare")
}

// TestProtectNames: an agent with protect: ["*"] writes none of the files that a tool of the
// host executes, or reads what to execute from, when somebody only changes directory, runs
// git, or starts an editor, a debugger, an interpreter, a build tool or an agent program. What
// a person runs on purpose stays writable; docs/limits.md names it.
func TestProtectNames(t *testing.T) {
	def, err := ParseDefinition("a.md", []byte("---\nname: a\nprotect: ['*']\n---\n"))
	require.NoError(t, err)
	policy, err := scope.Compile(def.View.PolicySpec())
	require.NoError(t, err)
	for list, names := range map[string]string{
		"git-hooks": `lefthook.yml lefthook.json .lefthook.jsonc lefthook-local.toml .lefthook-local.json .config/lefthook.toml .config/lefthook-local.yml
			.lefthook-local/pre-commit/x LEFTHOOK.YML .lefthook/pre-commit/x .pre-commit-config.yaml prek.toml sub/prek.toml hk.pkl .config/hk.local.pkl hk.toml hk.json
			.husky/pre-commit .huskyrc.json .lintstagedrc .lintstagedrc.mts lint-staged.config.cjs .nano-staged.json .simple-git-hooks.cjs simple-git-hooks.json
			.commitlintrc.ts commitlint.config.mjs .czrc cz.toml .overcommit.yml .local-overcommit.yml captainhook.json grumphp.yml grumphp.yml.dist .rusty-hook.toml
			rusty-hook.toml .githooks/x .git-hooks/x .gitlint .mrconfig .hg/hgrc .hgrc .jj/repo/config.toml .sl/config .bzr/branch/branch.conf .svn/wc.db _darcs/prefs/defaults
			.fslckout .pijul/config .repo/repo/main.py .p4config scripts/hooks/pre-commit hooks/update .moon/hooks/pre-commit.sh .moon/workspace.yml .trunk/trunk.yaml .mookme.json cog.toml
			.gitreview .lfsconfig .lazygit.yml .git/lazygit.yml x.git/lazygit.yml .git/sl/config x.git/branchless/config .git/branchless/config .git/gitweb/gitweb_config.perl .reviewboardrc .arcconfig .gclient .west/config`,
		"editor": `.vscode/tasks.json x.code-workspace .idea/x .fleet/run.json .run/x.xml x.ipr .zed/tasks.json .helix/languages.toml .lapce/x .lite_project.lua .vs/x
			x.sublime-project x.sublime-workspace .vimrc .exrc _exrc .nvim.lua .nvimrc .lvimrc .vim/coc-settings.json .lazy.lua .ycm_extra_conf.py .vimspector.json .projections.json
			.dir-locals.el .dir-locals-2.el .emacs .devcontainer/devcontainer.json .devcontainer.json .kateproject x.geany .gdbinit sub/.GDBINIT .lldbinit .radare2rc .lsp/config.edn
			rust-analyzer.toml .phpactor.json .luarc.json .lintr gtags.conf .ctags.d/x.ctags .externalToolBuilders/x.launch .ropeproject/config.py .jedi/project.json .factorypath rust-project.json
			.nrepl.edn .joyride/scripts/workspace_activate.cljs omnisharp.json .tern-project .config/nvim/init.lua`,
		"shell": `.bashrc .bash_profile .profile .zshrc .zshenv sub/.zshenv .cshrc .tcshrc .login .kshrc .inputrc .config/fish/config.fish .config/nushell/env.nu .xonshrc .envrc .direnv/bin/x
			mise.toml .mise.toml mise.local.toml mise.production.toml .mise.production.local.toml .mise/config.toml mise/config.toml .config/mise/config.toml .config/mise/conf.d/x.toml
			.config/mise.toml .miserc.local.toml .config/miserc.local.toml mise.local.lock .mise/tasks/x .tool-versions .autoenv.zsh .bash_enter .shadowenv.d/x bin/activate-hermit .rvmrc .rbenv-vars rust-toolchain rust-toolchain.toml .tmux.conf
			.screenrc .pdbrc .pythonrc .ipython/x jupyter_server_config.py ipython_config.py .irbrc .pryrc .byebugrc .perldb .perltidyrc .perlcriticrc .proverc .Rprofile .rprofile .Renviron .RData
			renv/activate.R .octaverc startup.m .iex.exs .erlang .ghci .ocamlinit .gnuplot .psqlrc .sqliterc .mongorc.js .my.cnf .sbclrc .xsession .xprofile .ssh/authorized_keys
			.config/autostart/x.desktop .config/systemd/user/x.service .gnupg/gpg.conf devbox.json .flox/env/manifest.toml devenv.nix devenv.local.yaml .pixi/config.toml .psysh.php`,
		"build": `.npmrc sub/.npmrc .yarnrc .yarnrc.yml .yarn/releases/yarn.cjs .yarn/plugins/x.cjs .pnpmfile.cjs bunfig.toml .bundle/config .cargo/config .cargo/config.toml .mvn/jvm.config
			.mvn/wrapper/maven-wrapper.properties mvnw gradle/wrapper/gradle-wrapper.jar gradlew .gradle/config.properties .sbtopts .jvmopts .bazelrc user.bazelrc .bazeliskrc .bazelversion
			tools/bazel .buckconfig .plzconfig .pants.bootstrap pants.toml gradle/gradle-daemon-jvm.properties .chef/knife.rb .chef/config.rb ansible.cfg .conanrc .luarocks/config-5.4.lua
			.aspect/cli/config.yaml .actrc .tflint.hcl .tflint.d/plugins/x .yardopts .nx/nxw.js`,
		"mcp": `.mcp.json mcp.json .claude/settings.json .claude.json .codex/config.toml .gemini/settings.json .qwen/settings.json .iflow/settings.json opencode.json opencode.jsonc
			.opencode/plugin/x.ts .cursor/mcp.json .windsurf/hooks.json .github/hooks/x.json .GitHub/Hooks/x.json .github/mcp.json .github/agents/x.agent.md .copilot/x .zed/settings.json .kiro/hooks/x
			.roo/mcp.json .clinerules/hooks/PreToolUse .cline/x .kilocode/mcp.json .continue/config.yaml crush.json .crush.json .amp/settings.json .aider.conf.yml .goose/x .factory/hooks.json
			.augment/settings.json .junie/mcp/mcp.json .trae/mcp.json .qoder/x .openhands/setup.sh .agents/hooks.json .amazonq/mcp.json gptme.toml .pi/extensions/x.ts .vibe/config.toml .serena/project.yml .eca/config.json .mux/init .beads/hooks/on_create
			forge.yaml .forge/x .neovate/config.json .specify/scripts/bash/x.sh conductor.json .superset/config.json fastagent.config.yaml mcp_agent.config.yaml .refact/integrations.d/x.yaml codebuff.json
			.zencoder/x .openclaw/x`,
		"git-config": ".gitconfig .config/git/config",
		"scopefs":    "agents.d/x.md scopefs.yaml .scopefs.yaml .SCOPEFS.yaml",
	} {
		for _, name := range strings.Fields(names) {
			for _, rel := range []string{name, "sub/" + name} {
				d := policy.File(scope.OpCreate, rel)
				if assert.Equal(t, strings.HasPrefix(rel, "sub/hk.json"), d.Allow, rel) && !d.Allow && name != ".zed/settings.json" {
					assert.Equal(t, "protect "+list, d.Rule, rel)
				}
				assert.True(t, policy.File(scope.OpOpen, rel).Allow, rel)
			}
		}
	}
	for _, rel := range strings.Fields(`Makefile package.json package-lock.json tsconfig.json build.rs conftest.py Rakefile Guardfile Gemfile Vagrantfile Dockerfile Justfile
		pyproject.toml setup.py Cargo.toml go.mod build.gradle settings.gradle gradle.properties pom.xml BUILD.bazel WORKSPACE MODULE.bazel CMakeLists.txt CMakePresets.json
		.editorconfig .prettierrc .eslintrc.json eslint.config.js .pylintrc .rubocop.yml .gitignore .gitattributes .gitmodules .github/workflows/ci.yml .gitlab-ci.yml .env .nvmrc .node-version
		.python-version .ruby-version CLAUDE.md AGENTS.md GEMINI.md .cursorrules README.md pnpm-workspace.yaml .yarn/install-state.gz .yarn/cache/x.zip .pnp.cjs .venv/bin/python
		node_modules/.bin/x node_modules/.package-lock.json locales/hk.json docs/mise.md lefthook.md .config/x config/mise.yml github/hooks/x bazel tools/x gradle/libs.versions.toml .gradle/8.0/x
		.cargo/registry/x bin/x tasks.py noxfile.py flake.nix shell.nix docs/hooks/x config.toml startup.py vscode/x idea/x`) {
		assert.True(t, policy.File(scope.OpCreate, rel).Allow, rel)
	}
}

// TestOwnProtect: the operator adds lists in protect.d, by name or with "*". No list of scopefs
// is replaced, and a definition whose list disappears, or breaks, does not lose it.
func TestOwnProtect(t *testing.T) {
	base := t.TempDir()
	define := func(protect string) {
		writeFile(t, base, "agents.d/a.md", "---\nname: a\nprotect: "+protect+"\n---\n")
	}
	readOnly := func(all *Snapshot, path string) bool {
		policy, err := scope.Compile(all.Agents["a"].View.PolicySpec())
		require.NoError(t, err)
		d := policy.File(scope.OpOpenWrite, path)
		assert.Equal(t, d.Allow, d.Kind != scope.KindProtect, d)
		return !d.Allow
	}
	define("[make]")
	_, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `agents.d/a.md:3: protect: "make" matches no list (there is build, editor, git-config, git-hooks, mcp, scopefs, shell): correct it, or create protect.d/make.yaml`)

	writeFile(t, base, "protect.d/make.yaml", "description: what make executes\npaths: ['**/Makefile']\n")
	all, errs := Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "d/Makefile"))
	assert.False(t, readOnly(all, ".vscode"))
	assert.True(t, later(all).Current(base, "a"))
	define("['*']")
	all, errs = all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "Makefile"))
	assert.True(t, readOnly(all, ".vscode"))
	assert.False(t, readOnly(all, "justfile"))

	writeFile(t, base, "protect.d/make.yaml", "paths: ['**/Makefile', '**/justfile']\n")
	assert.False(t, later(all).Current(base, "a"))
	all, errs = all.Reload(base, Host{Tools: ours()})
	require.Empty(t, errs)
	assert.True(t, readOnly(all, "justfile"))
	for text, want := range map[string]string{
		"paths: []\n":    "protect.d/make.yaml:1: protects nothing",
		"paths: ['[']\n": "protect.d/make.yaml:1: protect make: pattern",
		"paths: [a]\ngit_config: [core.fsmonitor]\n": `protect.d/make.yaml:2: unknown key "git_config"`,
	} {
		writeFile(t, base, "protect.d/make.yaml", text)
		now, errs := all.Reload(base, Host{Tools: ours()})
		require.Len(t, errs, 1)
		assert.ErrorContains(t, errs[0], want)
		assert.True(t, readOnly(now, "justfile"), "the last good list holds")
	}

	// Also one that has loaded before: without its list the agent could do more.
	define("[make]")
	writeFile(t, base, "protect.d/make.yaml", "paths: ['**/Makefile']\n")
	all, errs = Load(base, Host{Tools: ours()})
	require.Empty(t, errs)
	require.NoError(t, os.Remove(filepath.Join(base, "protect.d/make.yaml")))
	now, errs := all.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `protect: "make" matches no list`)
	assert.True(t, readOnly(now, "Makefile"))
	later, errs := Resume(all.Seen()).Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.Empty(t, later.Agents)

	define("['*']")
	writeFile(t, base, "protect.d/make.yaml", "paths: [\n")
	none, errs := Load(base, Host{Tools: ours()})
	require.Len(t, errs, 2)
	assert.ErrorContains(t, errs[1], `agents.d/a.md:3: protect: a list in protect.d does not load, and "*" is all of them: correct what scopefs agents check names`)
	assert.Empty(t, none.Agents)
	now, errs = all.Reload(base, Host{Tools: ours()})
	require.Len(t, errs, 1, "the last good list holds")
	assert.True(t, readOnly(now, "Makefile"))
	require.NoError(t, os.Remove(filepath.Join(base, "protect.d/make.yaml")))

	define("[editor]")
	writeFile(t, base, "protect.d/editor.yaml", "paths: [x]\n")
	_, errs = Load(base, Host{Tools: ours()})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "protect.d/editor.yaml:1: has the name of a list of scopefs: give it another one")
}
