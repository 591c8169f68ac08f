package view

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// newFileSet returns the file tools of agent a, whose worker is in a sandbox on
// its view.
func newFileSet(t testing.TB, h *harness.Host) *tools.Set {
	t.Helper()
	h.Must("up", "a")
	sandboxes, err := sandbox.Open(sandbox.Config{Init: harness.Program + "-init", Files: harness.Program + "-files"})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sandboxes.Close()) })
	fd, err := unix.Open(h.View("a"), unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	view := os.NewFile(uintptr(fd), "view")
	t.Cleanup(func() { view.Close() })
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	s, err := sandboxes.Start(context.Background(), sandbox.Spec{Agent: "a", UID: st.Uid, GID: st.Gid, View: view})
	require.NoError(t, err)
	w := file.New(worker.New(worker.In(s, file.Own)))
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	all, err := w.Tools()
	require.NoError(t, err)
	snapshot, errs := agents.Load(h.Base, agents.Host{})
	require.Empty(t, errs)
	set, err := tools.NewSet(tools.Gate{
		Agent: "a", Session: "s", Rates: &tools.Rates{}, Object: w.Object,
		Rules:  func() tools.Rules { return snapshot.Agents["a"].Grants },
		Record: func(context.Context, audit.Event) error { return nil },
	}, all...)
	require.NoError(t, err)
	return set
}

// callTool calls a tool and returns what it says, or its error.
func callTool(t testing.TB, set *tools.Set, name, args string) (string, *tools.Error) {
	t.Helper()
	r, err := set.Call(context.Background(), tools.Call{Tool: name, Args: json.RawMessage(args)})
	if err != nil {
		var e *tools.Error
		require.ErrorAs(t, err, &e)
		return "", e
	}
	return r.Content[0].Text, nil
}

// What the view refuses, the file tools tell as it should be told, and leave
// nothing behind.
func TestFileToolsInView(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view:\n  paths:\n    \"ro/**\": read\n    \"**/.env\": hide\n", "b": ""})
	root := h.Scope("a")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "ro"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "ro/f"), []byte("read\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, ".env"), []byte("SECRET\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "f"), []byte("text\n"), 0o644))
	require.NoError(t, os.WriteFile(h.Scope("b")+"/secret", []byte("secret\n"), 0o644))
	require.NoError(t, os.Symlink("../b/secret", filepath.Join(root, "out")))
	require.NoError(t, os.Symlink("../b/nothing", filepath.Join(root, "out2")))
	require.NoError(t, os.Symlink("../b", filepath.Join(root, "outdir")))
	require.NoError(t, os.Symlink("f", filepath.Join(root, "in")))
	set := newFileSet(t, h)
	for _, test := range []struct {
		tool, args, says string
		code             tools.Code
	}{
		{"read_file", `{"path":"f"}`, "text\n", ""},
		{"read_file", `{"path":"/workspace/in"}`, "text\n", ""},
		{"read_file", `{"path":"out"}`, "no such file or directory", tools.NotFound},
		{"read_file", `{"path":"out2"}`, "no such file or directory", tools.NotFound},
		{"read_file", `{"path":"outdir/secret"}`, "no such file or directory", tools.NotFound},
		{"list_dir", `{"path":"outdir"}`, "no such file or directory", tools.NotFound},
		{"read_file", `{"path":".env"}`, "no such file or directory", tools.NotFound},
		{"write_file", `{"path":"out","content":"x"}`, "outside of the view", tools.OutsideScope},
		{"write_file", `{"path":"out2","content":"x"}`, "outside of the view", tools.OutsideScope},
		{"write_file", `{"path":"outdir/new","content":"x"}`, "outside of the view", tools.OutsideScope},
		{"edit_file", `{"path":"out","edits":[{"old_text":"s","new_text":"x"}]}`, "outside of the view", tools.OutsideScope},
		{"copy", `{"from":"out","to":"copied"}`, "no such file or directory", tools.NotFound},
		{"make_dir", `{"path":"outdir/new"}`, "outside of the view", tools.OutsideScope},
		{"read_file", `{"path":"ro/f"}`, "read\n", ""},
		{"write_file", `{"path":"ro/f","content":"x"}`, "permission denied", tools.Denied},
		{"write_file", `{"path":"ro/new","content":"x"}`, "permission denied", tools.Denied},
		{"delete_file", `{"path":"ro/f"}`, "permission denied", tools.Denied},
		{"move", `{"from":"f","to":"ro/g"}`, "permission denied", tools.Denied},
		{"write_file", `{"path":"new/file","content":"x"}`, "created new/file, 1 bytes", ""},
		{"write_file", `{"path":"new/file","content":"xy"}`, "wrote new/file, 2 bytes", ""},
		{"write_file", `{"path":"new/file","content":"z","mode":"create"}`, "exists already", tools.Conflict},
		{"move", `{"from":"new/file","to":"f"}`, "exists already", tools.Conflict},
		{"grep", `{"pattern":"SECRET|secret"}`, "no matches\n", ""},
		{"delete", `{"path":"new","recursive":true}`, `{"path":"new","deleted":2}`, ""},
		{"list_dir", `{}`, "f\t5\nin\t(link)\nout\t(link)\nout2\t(link)\noutdir\t(link)\nro/\n", ""},
		{"list_dir", `{"names_only":true}`, "f\nin\t(link)\nout\t(link)\nout2\t(link)\noutdir\t(link)\nro/\n", ""},
	} {
		says, e := callTool(t, set, test.tool, test.args)
		if test.code != "" {
			if assert.NotNil(t, e, "%s %s: %s", test.tool, test.args, says) {
				assert.Equal(t, test.code, e.Code, "%s %s", test.tool, test.args)
				assert.Equal(t, test.says, e.Message, "%s %s", test.tool, test.args)
				assert.NotContains(t, e.Error(), h.Base)
			}
			continue
		}
		if assert.Nil(t, e, "%s %s", test.tool, test.args) {
			assert.Equal(t, test.says, says, "%s %s", test.tool, test.args)
		}
	}
	got, err := os.ReadFile(h.Scope("b") + "/secret")
	require.NoError(t, err)
	assert.Equal(t, "secret\n", string(got))
}

// BenchmarkFileTools measures calls through the door, a sandbox and a view. It
// asserts nothing about time.
func BenchmarkFileTools(b *testing.B) {
	h := harness.NewHost(b, map[string]string{"a": ""})
	require.NoError(b, os.WriteFile(h.Scope("a")+"/f", []byte(strings.Repeat("0123456789abcde\n", 256)), 0o644))
	set := newFileSet(b, h)
	measure := func(tool string, args func(n int) string) {
		var took []time.Duration
		for n := range 3000 {
			began := time.Now()
			_, e := callTool(b, set, tool, args(n))
			took = append(took, time.Since(began))
			require.Nil(b, e)
		}
		slices.Sort(took)
		fmt.Printf("%-40s p50 %v p99 %v\n", tool+" "+args(0), took[len(took)/2], took[len(took)*99/100])
	}
	same := func(s string) func(int) string { return func(int) string { return s } }
	measure("stat", same(`{"path":"f"}`))
	measure("read_file", same(`{"path":"f"}`))
	measure("write_file", same(`{"path":"g","content":"some text"}`))
	measure("edit_file", func(n int) string {
		return fmt.Sprintf(`{"path":"g","edits":[{"insert_line":0,"new_text":"x"}],"dry_run":%t}`, n >= 0)
	})
	measure("list_dir", same(`{}`))
	measure("glob", same(`{"pattern":"**"}`))
	measure("grep", same(`{"pattern":"nothing"}`))
}
