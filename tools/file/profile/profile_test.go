package profile

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/workertest"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/tree"
)

// newSet returns a set over files that do not come from a sandbox, under the names of a
// profile. "d/" is a directory, all else a file with its content.
func newSet(t *testing.T, profile string, content map[string]string) *tools.Set {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, text := range content {
		full := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.MkdirAll(full, 0o755))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(text), 0o644))
	}
	files := file.New(workertest.Start(t, tree.Below(root)))
	require.NoError(t, files.Start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, files.Close()) })
	all, err := files.Tools()
	require.NoError(t, err)
	more, err := New(profile, nil)
	require.NoError(t, err)
	return agenttest.New(t, tools.Gate{Agent: "a", Object: files.Object}, "", append(all, more...)).Set
}

// step is a call of a tool with its text, or its error's code.
type step struct {
	tool string
	args string
	says string
	code tools.Code
}

func take(t *testing.T, set *tools.Set, steps []step) {
	t.Helper()
	for _, s := range steps {
		r, err := set.Call(t.Context(), tools.Call{Tool: s.tool, Args: json.RawMessage(s.args)})
		if s.code != "" {
			var e *tools.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, s.code, e.Code, "%s %s: %v", s.tool, s.args, err)
			continue
		}
		if assert.NoError(t, err, "%s %s", s.tool, s.args) {
			require.Len(t, r.Content, 1, s.args)
			assert.Equal(t, s.says, r.Content[0].Text, "%s %s", s.tool, s.args)
		}
	}
}

func TestProfileClaude(t *testing.T) {
	set := newSet(t, Claude, map[string]string{"src/a.go": "one\ntwo\n", "src/b.txt": "two\n", "d/": ""})
	take(t, set, []step{
		{tool: "Read", args: `{"file_path":"src/a.go"}`, says: "     1\tone\n     2\ttwo\n"},
		{tool: "Read", args: `{"file_path":"src/a.go","offset":2,"limit":1}`, says: "     2\ttwo\n"},
		{tool: "Read", args: `{"file_path":"src"}`, code: tools.Invalid},
		{tool: "Read", args: `{"file_path":"/etc/passwd"}`, code: tools.NotFound},
		{tool: "Read", args: `{"path":"src/a.go"}`, code: tools.Invalid},
		{tool: "read_file", args: `{"path":"src/a.go"}`, code: tools.Denied},
		{tool: "Write", args: `{"file_path":"n","content":"x\n"}`, says: "File created successfully at: n"},
		{tool: "Write", args: `{"file_path":"n","content":"y\n"}`, says: "The file n has been updated."},
		{tool: "Edit", args: `{"file_path":"n","old_string":"y","new_string":"z"}`, says: "The file n has been updated.\n--- a/n\n+++ b/n\n@@ -1,1 +1,1 @@\n-y\n+z\n"},
		{tool: "Edit", args: `{"file_path":"n","old_string":"y","new_string":"z"}`, code: tools.Conflict},
		{tool: "Edit", args: `{"file_path":"m","old_string":"","new_string":"z\n"}`, says: "File created successfully at: m"},
		{tool: "Edit", args: `{"file_path":"m","old_string":"","new_string":"z\n"}`, code: tools.Conflict},
		{tool: "MultiEdit", args: `{"file_path":"m","edits":[{"old_string":"z","new_string":"a"},{"old_string":"a","new_string":"b"}]}`, says: "The file m has been updated.\n--- a/m\n+++ b/m\n@@ -1,1 +1,1 @@\n-z\n+b\n"},
		{tool: "Glob", args: `{"pattern":"*.go"}`, says: "src/a.go\n"},
		{tool: "Glob", args: `{"pattern":"*.py"}`, says: "No files found\n"},
		{tool: "Grep", args: `{"pattern":"two"}`, says: "Found 2 files\nsrc/a.go\nsrc/b.txt\n"},
		{tool: "Grep", args: `{"pattern":"two","type":"go","output_mode":"content","-B":1}`, says: "src/a.go-1-one\nsrc/a.go:2:two\n"},
		{tool: "Grep", args: `{"pattern":"TWO","-i":true,"glob":"*.txt","output_mode":"content","-n":false}`, says: "src/b.txt:two\n"},
		{tool: "Grep", args: `{"pattern":"two","output_mode":"count"}`, says: "src/a.go:1\nsrc/b.txt:1\n"},
		{tool: "Grep", args: `{"pattern":"three"}`, says: "No files found"},
		{tool: "Grep", args: `{"pattern":"three","type":"go","glob":"*"}`, code: tools.Invalid},
		{tool: "LS", args: `{"path":"."}`, says: "d/\nm\t2\nn\t2\nsrc/\n"},
		{tool: "stat", args: `{"path":"no"}`, code: tools.NotFound},
	})
}

func TestProfileAnthropicEditor(t *testing.T) {
	const tool = "str_replace_based_edit_tool"
	set := newSet(t, AnthropicEditor, map[string]string{"d/a": "one\ntwo\nthree\n", "d/e/f/g": ""})
	take(t, set, []step{
		{tool: tool, args: `{"command":"view","path":"d/a"}`, says: "Here's the result of running `cat -n` on d/a:\n     1\tone\n     2\ttwo\n     3\tthree\n"},
		{tool: tool, args: `{"command":"view","path":"d/a","view_range":[1,2]}`, says: "Here's the result of running `cat -n` on d/a:\n     1\tone\n     2\ttwo\n"},
		{tool: tool, args: `{"command":"view","path":"d/a","view_range":[2,-1]}`, says: "Here's the result of running `cat -n` on d/a:\n     2\ttwo\n     3\tthree\n"},
		{tool: tool, args: `{"command":"view","path":"d/a","view_range":[2,1]}`, code: tools.Invalid},
		{tool: tool, args: `{"command":"view","path":"d"}`, says: "Here are the files and directories up to 2 levels deep in d:\nd/a\t14\nd/e/\nd/e/f/\n"},
		{tool: tool, args: `{"command":"view","path":"../d"}`, code: tools.NotFound},
		{tool: tool, args: `{"command":"create","path":"n","file_text":"x"}`, says: "File created successfully at: n"},
		{tool: tool, args: `{"command":"create","path":"n","file_text":"x"}`, code: tools.Conflict},
		{tool: tool, args: `{"command":"create","path":"/tmp/n","file_text":"x"}`, code: tools.OutsideScope},
		{tool: tool, args: `{"command":"str_replace","path":"n","old_str":"x","new_str":"y"}`,
			says: "The file n has been edited.\n--- a/n\n+++ b/n\n@@ -1,1 +1,1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n"},
		{tool: tool, args: `{"command":"insert","path":"d/a","insert_line":1,"insert_text":"1.5"}`,
			says: "The file d/a has been edited.\n--- a/d/a\n+++ b/d/a\n@@ -1,3 +1,4 @@\n one\n+1.5\n two\n three\n"},
		{tool: tool, args: `{"command":"insert","path":"d/a","insert_text":"1.5"}`, code: tools.Invalid},
		{tool: tool, args: `{"command":"undo_edit","path":"d/a"}`, code: tools.Invalid},
	})
}

func TestProfileMCPFS(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 3, 3))))
	set := newSet(t, MCPFS, map[string]string{"a.txt": "one\ntwo\nthree\n", "d/b.txt": "b", "d/e/c.md": "c", "d/empty/": "", "i.png": b.String(),
		"m/s.WAV": "RIFF\x00\x00\x00\x00WAVE", "m/bin": "\x00\x01"})
	take(t, set, []step{
		{tool: "read_text_file", args: `{"path":"a.txt"}`, says: "one\ntwo\nthree\n"},
		{tool: "read_file", args: `{"path":"a.txt","head":2}`, says: "one\ntwo"},
		{tool: "read_text_file", args: `{"path":"d/b.txt","head":0,"tail":0}`, says: "b"},
		{tool: "read_text_file", args: `{"path":"a.txt","tail":1}`, says: "three"},
		{tool: "read_text_file", args: `{"path":"a.txt","tail":1,"head":1}`, code: tools.Invalid},
		{tool: "read_multiple_files", args: `{"paths":["a.txt","d/b.txt"]}`, says: "a.txt:\none\ntwo\nthree\n\n\n---\nd/b.txt:\nb\n"},
		{tool: "read_multiple_files", args: `{"paths":["no","d","d/b.txt"]}`, says: "no: Error - not_found: no such file or directory: no\n---\nd: Error - invalid: is a directory: d (use list_dir)\n---\nd/b.txt:\nb\n"},
		{tool: "read_multiple_files", args: `{"paths":[]}`, code: tools.Invalid},
		{tool: "write_file", args: `{"path":"n","content":"x\n"}`, says: "Successfully wrote to n"},
		{tool: "write_file", args: `{"path":"n","content":"x\n","mode":"append"}`, code: tools.Invalid},
		{tool: "edit_file", args: `{"path":"n","edits":[{"oldText":"x","newText":"y"}],"dryRun":true}`, says: "```diff\n--- a/n\n+++ b/n\n@@ -1,1 +1,1 @@\n-x\n+y\n```\n\n"},
		{tool: "read_file", args: `{"path":"n"}`, says: "x\n"},
		{tool: "edit_file", args: `{"path":"n","edits":[{"oldText":"x","newText":"y"}]}`, says: "```diff\n--- a/n\n+++ b/n\n@@ -1,1 +1,1 @@\n-x\n+y\n```\n\n"},
		{tool: "read_file", args: `{"path":"n"}`, says: "y\n"},
		{tool: "create_directory", args: `{"path":"x/y"}`, says: "Successfully created directory x/y"},
		{tool: "move_file", args: `{"source":"n","destination":"x/y/n"}`, says: "Successfully moved n to x/y/n"},
		{tool: "move_file", args: `{"source":"x/y/n","destination":"a.txt"}`, code: tools.Conflict},
		{tool: "list_directory", args: `{"path":"."}`, says: "[FILE] a.txt\n[DIR] d\n[FILE] i.png\n[DIR] m\n[DIR] x"},
		{tool: "list_directory_with_sizes", args: `{"path":"d"}`, says: "[FILE] b.txt                                 1 B\n[DIR] e                              \n[DIR] empty                          \n\nTotal: 1 files, 2 directories\nCombined size: 1 B"},
		{tool: "directory_tree", args: `{"path":"d"}`, says: `[
  {
    "name": "b.txt",
    "type": "file"
  },
  {
    "name": "e",
    "type": "directory",
    "children": [
      {
        "name": "c.md",
        "type": "file"
      }
    ]
  },
  {
    "name": "empty",
    "type": "directory",
    "children": []
  }
]`},
		{tool: "directory_tree", args: `{"path":".","excludePatterns":["e","m","x","*.png","empty"]}`, says: `[
  {
    "name": "a.txt",
    "type": "file"
  },
  {
    "name": "d",
    "type": "directory",
    "children": [
      {
        "name": "b.txt",
        "type": "file"
      }
    ]
  }
]`},
		{tool: "search_files", args: `{"path":".","pattern":"**/*.{txt,md}"}`, says: "/workspace/a.txt\n/workspace/d/b.txt\n/workspace/d/e/c.md"},
		{tool: "search_files", args: `{"path":"d","pattern":"**/*.{txt,md}","excludePatterns":["e/**"]}`, says: "/workspace/d/b.txt"},
		{tool: "search_files", args: `{"path":"d","pattern":"*.py"}`, says: "No matches found"},
		{tool: "list_allowed_directories", args: `{}`, says: "Allowed directories:\n/workspace"},
		{tool: "get_file_info", args: `{"path":"/etc"}`, code: tools.NotFound},
	})
	r, err := set.Call(t.Context(), tools.Call{Tool: "read_media_file", Args: json.RawMessage(`{"path":"i.png"}`)})
	require.NoError(t, err)
	assert.Equal(t, []tools.Content{{Data: b.Bytes(), MIME: "image/png"}}, r.Content)
	r, err = set.Call(t.Context(), tools.Call{Tool: "read_media_file", Args: json.RawMessage(`{"path":"m/s.WAV"}`)})
	require.NoError(t, err)
	assert.Equal(t, []tools.Content{{Data: []byte("RIFF\x00\x00\x00\x00WAVE"), MIME: "audio/wav"}}, r.Content)
	r, err = set.Call(t.Context(), tools.Call{Tool: "read_media_file", Args: json.RawMessage(`{"path":"m/bin"}`)})
	require.NoError(t, err)
	assert.Equal(t, []tools.Content{{Data: []byte("\x00\x01"), MIME: "application/octet-stream"}}, r.Content)
	r, err = set.Call(t.Context(), tools.Call{Tool: "get_file_info", Args: json.RawMessage(`{"path":"d/b.txt"}`)})
	require.NoError(t, err)
	assert.Regexp(t, `^size: 1\nmodified: 20.*Z\nisDirectory: false\nisFile: true\npermissions: 644$`, r.Content[0].Text)
	var names []string
	for _, tool := range set.List() {
		names = append(names, tool.Name)
	}
	assert.Subset(t, names, []string{"list_allowed_directories", "read_file", "write_file", "grep", "delete"})
	assert.NotContains(t, names, "list_dir")
}

func TestNoSuchProfile(t *testing.T) {
	_, err := New("cursor", nil)
	assert.ErrorIs(t, err, ErrUnknown)
	for n, text := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KB", 1536: "1.50 KB", 3 << 20: "3.00 MB", 5 << 40: "5.00 TB", 5000 << 40: "5000.00 TB"} {
		assert.Equal(t, text, sizeText(n))
	}
}

// TestSizesMissing checks that a worker, which is the agent's, cannot end the daemon by a listing without sizes.
func TestSizesMissing(t *testing.T) {
	r := tools.Result{Structured: []byte(`{"path":".","entries":[{"path":"a","type":"file"},{"path":"b","type":"file"}]}`)}
	assert.Contains(t, renderSizes(mcpSizes{SortBy: "size"}, r).Content[0].Text, "Combined size: 0 B")
}
