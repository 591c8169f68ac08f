package cli

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestCallHelp: the arguments of a tool are shown without a call.
func TestCallHelp(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [read_file, write_file, edit_file, bash]"})
	help := h.Must("call", "write_file", "--help", "--agent", "a")
	assert.Regexp(t, `(?m)^  path= +text, required +\S`, help)
	assert.Regexp(t, `(?m)^  content= +text, required`, help)
	assert.Regexp(t, `(?m)^Usage: scopefs call write_file .*path=PATH.* --agent AGENT$`, help)
	help = h.Must("call", "--agent", "a", "builtin:bash", "--help")
	assert.Regexp(t, `(?m)^  timeout_ms:= +integer, at least 1, at most 600000 +\S`, help)
	assert.Regexp(t, `(?m)^    old_\w+ +text`, h.Must("call", "edit_file", "--help", "--agent", "a"))
	assert.Contains(t, h.Must("call", "--help"), "--exit-status")
	assert.Contains(t, h.Must("help", "call"), "--exit-status")
	assert.Empty(t, h.Calls("a", "write_file"), "nothing was called")

	for _, secret := range []string{"readfile", "delete", "delete_file"} { // the last two are not the agent's
		_, errs, code := h.Try("call", secret, "--help", "--agent", "a")
		assert.Equal(t, 2, code)
		assert.Equal(t, secret == "readfile", regexp.MustCompile(`did you mean read_file\?`).MatchString(errs), errs)
	}
	_, errs, code := h.Try("call", "write_file", "--help")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "give --agent AGENT")
}

// TestCallMeant: an agent that mistypes the name of a tool or of an argument is told
// which it may have meant, of those that it may call.
func TestCallMeant(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "tools: [read_file]"})
	for words, want := range map[string]string{
		"read_fil":   `there is no tool .*did you mean read_file\?`,
		"write_fil":  `there is no tool \\?"write_fil\\?" here"}?$`,
		"write_file": `there is no tool \\?"write_file\\?" here"}?$`,
	} {
		_, errs, code := h.Try("call", "--agent", "a", words, "path=x")
		assert.Equal(t, 1, code)
		assert.Regexp(t, want, errs[:len(errs)-1])
	}
	_, errs, _ := h.Try("call", "--agent", "a", "read_file", "pth=x")
	assert.Contains(t, errs, "did you mean path?")
}

// TestCallExitStatus: a command's exit status is told, and with --exit-status it is
// that of scopefs.
func TestCallExitStatus(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	call := func(words ...string) (string, string, int) {
		return h.Try(append([]string{"call", "--agent", "a"}, words...)...)
	}
	out, errs, code := call("bash", "command=echo x; exit 3")
	assert.Zero(t, code)
	assert.Contains(t, out, "x\n")
	assert.Equal(t, "scopefs: the command ended with exit status 3; --exit-status ends with it\n", errs)
	out, errs, code = call("--json", "bash", "command=exit 3")
	assert.Zero(t, code)
	assert.Contains(t, out, `"exit_code":3`)
	assert.Contains(t, errs, "exit status 3")
	_, errs, code = call("bash", "command=true")
	assert.Zero(t, code)
	assert.Empty(t, errs)

	for name, test := range map[string]struct {
		words []string
		code  int
	}{
		"done":     {[]string{"bash", "command=true"}, 0},
		"failed":   {[]string{"bash", "command=exit 3"}, 3},
		"one":      {[]string{"bash", "command=exit 1"}, 1},
		"killed":   {[]string{"bash", "command=kill -TERM $$"}, 128 + int(syscall.SIGTERM)},
		"late":     {[]string{"bash", "command=sleep 60", "timeout_ms:=100"}, 124},
		"refused":  {[]string{"bash", "comand=true"}, 125},
		"no bash":  {[]string{"list_dir"}, 125},
		"no tool":  {[]string{"nothing"}, 125},
		"as JSON":  {[]string{"--json", "bash", "command=exit 3"}, 3},
		"not over": {[]string{"bash", "command=sleep 60", "background:=true"}, 0},
	} {
		_, errs, code := call(append([]string{"--exit-status"}, test.words...)...)
		assert.Equal(t, test.code, code, "%s: %s", name, errs)
		if name == "not over" { // it ends with the command's session
			assert.Contains(t, errs, "ends now, with the session of this command")
			continue
		}
		assert.Equal(t, test.code != 0, errs != "", "%s: %s", name, errs)
	}
}

// TestCallDir: -C is the cwd of commands that name none, under every name of the tool,
// and rules and log have it like one that the call names.
func TestCallDir(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.MkdirAll(h.Scope("a", "src", "deep er"), 0o755))
	assert.Equal(t, "/workspace/src/deep er\n", h.Must("call", "--agent", "a", "-C", "src/deep er", "bash", "command=pwd"))
	calls := h.Calls("a", "bash")
	require.NotEmpty(t, calls)
	assert.Equal(t, "src/deep er", calls[0].Path)
	assert.Equal(t, "/workspace/src\n", h.Must("call", "--agent", "a", "-C", "/workspace/src", "--profile", "claude", "Bash", "command=pwd"))
	assert.Equal(t, "/tmp\n", h.Must("call", "--agent", "a", "-C", "/tmp", "bash", "command=pwd"))
	assert.Equal(t, "/workspace/src\n", h.Must("call", "--agent", "a", "-C", "/tmp", "bash", "command=pwd", "cwd=src"))
	assert.Contains(t, h.Must("call", "--agent", "a", "-C", "src", "--list"), "bash")
	_, errs, code := h.Try("call", "--agent", "a", "-C", "none", "bash", "command=pwd")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, `"not_found"`)
	_, errs, code = h.Try("call", "--agent", "a", "-C", "a\nb", "bash", "command=pwd")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "holds a newline")

	assert.Equal(t, "/workspace/src", h.Connect("a", "-C", "src").Bash("pwd"), "mcp")
}

// TestCallAsks: ask_user asks at the terminal of scopefs call.
func TestCallAsks(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	for name, test := range map[string]struct {
		types []string // after each prompt
		says  string
		want  string
	}{
		"by number": {[]string{"2\r"}, "  2. tea", "tea\n"},
		"by name":   {[]string{"coffee\r"}, "Which?", "coffee\n"},
		"again":     {[]string{"7\r", "1\r"}, "", "coffee\n"},
		"no answer": {[]string{"\r"}, "", "The user declined to answer.\n"},
		"the end":   {[]string{"\x04"}, "", "The user declined to answer.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(harness.Program, "--base", h.Base, "call", "--agent", "a", "ask_user", "question=Which?\x1b[2J", `options:=["coffee","tea"]`)
			var out bytes.Buffer
			ptmx, tty, err := pty.Open()
			require.NoError(t, err)
			defer ptmx.Close()
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, &out, tty
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			require.NoError(t, cmd.Start())
			tty.Close()
			defer func() { _ = cmd.Process.Kill() }()
			fd, err := syscall.Dup(int(ptmx.Fd()))
			require.NoError(t, err)
			require.NoError(t, syscall.SetNonblock(fd, true))
			k := &harness.Talk{T: t, R: os.NewFile(uintptr(fd), "ptmx")} // not a blocking file, so that reads have deadlines
			defer k.R.Close()
			said := ""
			for _, text := range test.types {
				before := k.Expect("> ")
				said += before
				assert.NotContains(t, before, "\x1b")
				enter(k, text)
			}
			require.NoError(t, cmd.Wait())
			assert.Equal(t, test.want, out.String())
			assert.Contains(t, said, test.says)
		})
	}
	_, errs, code := h.Try("call", "--agent", "a", "ask_user", "question=Which?")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "this client cannot ask its user", "without a terminal")
}
