package tools

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsInstall: scopefs mcp --install makes each program offer its model the tools of
// an agent, and none of its own for files and commands. --uninstall restores its settings.
func TestClientsInstall(t *testing.T) {
	need.Once(t)
	needClients(t)
	onLoopback(t)
	installed, err := filepath.Abs("../../bin/clients/node_modules")
	require.NoError(t, err)
	for name, c := range installCases(t) {
		h := harness.LayOut(t, map[string]string{"a": ""})
		h.Put("agents/a/notes.txt", "of the agent\n")
		h.Start()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "own.txt"), []byte("of the host\n"), 0o644))
		had := map[string]string{}
		for file, text := range c.had {
			name := filepath.Join(dir, file)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
			had[file] = text
		}
		h.Must("mcp", "--install", name, "--agent", "a", "-C", dir)

		m := c.serve()
		home := t.TempDir()
		out, err := runClient(t, installed, c, dir, append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}, c.env(m.url, home, dir)...))
		assert.NoError(t, err, "%s: %s", name, out)
		assert.Contains(t, string(out), "all is done", name)
		t.Logf("%s offers %v", name, m.tools)
		for i, r := range m.results {
			t.Logf("%s: %d: %.300q", name, i, r)
			assert.NotContains(t, r, "of the host", name)
		}
		require.NotEmpty(t, m.results, name)
		assert.Contains(t, m.results[len(m.results)-1], "of the agent", name)
		h.Stop()
		assert.NotEmpty(t, h.Calls("a", "read_file"), name)

		h.Must("mcp", "--uninstall", name, "-C", dir)
		for file, text := range had {
			assert.Equal(t, text, harness.ReadAll(t, filepath.Join(dir, file)), name)
		}
		_, errs, code := h.Try("mcp", "--uninstall", name, "-C", dir)
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "has no settings of scopefs in "+dir)
	}
}

// TestClientsClone: settings for a directory that a team committed start scopefs for a clone of it.
func TestClientsClone(t *testing.T) {
	need.Once(t)
	needClients(t)
	onLoopback(t)
	installed, err := filepath.Abs("../../bin/clients/node_modules")
	require.NoError(t, err)
	path := filepath.Dir(harness.Program) + ":" + os.Getenv("PATH")
	for name, c := range installCases(t) {
		dir, home := t.TempDir(), t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("of the agent\n"), 0o644))
		install := exec.Command(harness.Program, "mcp", "--install", name, "--dir", ".")
		install.Dir = dir
		install.Env = []string{"HOME=" + t.TempDir(), "PATH=" + path}
		out, err := install.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		clone := filepath.Join(t.TempDir(), "clone")
		require.NoError(t, os.CopyFS(clone, os.DirFS(dir)))
		require.NoError(t, os.RemoveAll(dir))

		m := c.serve()
		out, err = runClient(t, installed, c, clone, append([]string{"HOME=" + home, "PATH=" + path, "NO_COLOR=1"}, c.env(m.url, home, clone)...))
		assert.NoError(t, err, "%s: %s", name, out)
		assert.Contains(t, string(out), "all is done", name)
		require.NotEmpty(t, m.results, name)
		assert.Contains(t, m.results[len(m.results)-1], "of the agent", name)
	}
}

// runClient runs a program in a directory with an environment.
func runClient(t *testing.T, installed string, c installCase, dir string, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(installed, c.file), c.args...)
	if strings.HasSuffix(c.file, ".js") {
		cmd = exec.CommandContext(ctx, filepath.Join(installed, "../node/bin/node"), append([]string{filepath.Join(installed, c.file)}, c.args...)...)
	}
	cmd.Dir, cmd.Env = dir, env
	return cmd.CombinedOutput()
}

// An installCase is a program outside of a sandbox.
type installCase struct {
	file  string // from where .ci/clients puts it
	args  []string
	env   func(url, home, dir string) []string
	serve func() *model
	had   map[string]string // settings of the user, by file
}

func installCases(t *testing.T) map[string]installCase {
	call := func(tool string, input any) func(string) turn {
		return func(string) turn { return turn{tool: tool, input: input} }
	}
	done := func(string) turn { return turn{answer: "all is done"} }
	programs := agentPrograms[runtime.GOARCH]
	return map[string]installCase{
		"claude": {
			file: programs["claude"], args: []string{"--print", "do it"},
			env: func(url, home, dir string) []string {
				// The user has said that he trusts the directory.
				require.NoError(t, os.WriteFile(filepath.Join(home, ".claude.json"), []byte(`{"projects": {"`+dir+`": {"hasTrustDialogAccepted": true}}}`), 0o644))
				return []string{"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
			},
			serve: func() *model {
				return serveClaude(t, call("Read", args{"file_path": "own.txt"}), call("Bash", args{"command": "cat own.txt"}),
					call("mcp__scopefs__read_file", args{"path": "notes.txt"}), done)
			},
			had: map[string]string{".claude/settings.json": "{\"permissions\": {\"deny\": [\"WebFetch\"]},\n \"model\": \"opus\"}\n"},
		},
		"codex": {
			file: programs["codex"], args: []string{"exec", "--skip-git-repo-check", "do it"},
			env: func(url, home, dir string) []string {
				require.NoError(t, os.MkdirAll(filepath.Join(home, ".codex"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(home, ".codex", "config.toml"), []byte(
					"model_provider = \"api\"\n[model_providers.api]\nname = \"api\"\nwire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\nsupports_websockets = false\nbase_url = \""+url+"/v1\"\n"+
						"[projects.\""+dir+"\"]\ntrust_level = \"trusted\"\n"), 0o644))
				return []string{"OPENAI_API_KEY=x"}
			},
			serve: func() *model {
				return serveCodex(t, call("exec", `text(ALL_TOOLS.map(t => t.name).sort().join(" "))`),
					call("exec", `text(await tools.exec_command({cmd: "cat own.txt"}))`),
					call("exec", `text(await tools.mcp__scopefs__read_file({path: "notes.txt"}))`), done)
			},
			had: map[string]string{".codex/config.toml": "hide_agent_reasoning = true # the user's\n\n[tui]\nnotifications = false"},
		},
		"gemini": {
			file: "@google/gemini-cli/bundle/gemini.js", args: []string{"--model", "gemini-2.5-pro", "--yolo", "--prompt", "do it"},
			env: func(url, home, _ string) []string {
				require.NoError(t, os.MkdirAll(filepath.Join(home, ".gemini"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(home, ".gemini", "settings.json"), []byte(`{"security": {"auth": {"selectedType": "gemini-api-key"}}}`), 0o644))
				return []string{"GOOGLE_GEMINI_BASE_URL=" + url, "GEMINI_API_KEY=x", "GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_CLI_NO_RELAUNCH=true", "GEMINI_TELEMETRY_ENABLED=false"}
			},
			serve: func() *model {
				return serveModel(t, geminiAPI.loosely(), call("read_file", args{"file_path": "own.txt"}), call("run_shell_command", args{"command": "cat own.txt"}),
					call("mcp_scopefs_read_file", args{"path": "notes.txt"}), done)
			},
			had: map[string]string{".gemini/settings.json": `{"ui": {"theme": "GitHub"}}`},
		},
		"opencode": {
			file: "opencode-linux-x64/bin/opencode", args: []string{"run", "--model", "anthropic/claude-sonnet-4-5", "do it"},
			env: func(url, _, _ string) []string {
				return []string{"ANTHROPIC_API_KEY=x", `OPENCODE_CONFIG_CONTENT={"provider": {"anthropic": {"options": {"baseURL": "` + url + `/v1"}}}}`,
					"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"}
			},
			serve: func() *model {
				return serveModel(t, messagesAPI.loosely(), call("read", args{"filePath": "own.txt"}), call("bash", args{"command": "cat own.txt", "description": "x"}),
					call("scopefs_read_file", args{"path": "notes.txt"}), done)
			},
			had: map[string]string{"opencode.json": `{"theme": "dark"}`},
		},
	}
}

// loosely returns the API of a program that also sends requests beside the script.
func (a api) loosely() api { a.lax = true; return a }
