package tools

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// theirTree is what both servers work on.
func theirTree(t *testing.T, root string) {
	t.Helper()
	for name, text := range map[string]string{
		"a.txt": "one\ntwo\nthree\n", "open": "one\ntwo", "crlf": "one\r\ntwo\r\nthree\r\n", "bom": "\ufeffone\n", "empty": "",
		"bin": "\x00\x01\x02", "twice": "x\nx\n", "indent": "if {\n\tdo()\n}\n", "fence": "```\nx\n", "B.md": "b\n",
		"d/b.txt": "b", "d/e/c.md": "c", "d/e/.hidden/x.md": "x", "git/.git/config": "x", "git/c": "x",
		"i.png": "\x89PNG\r\n\x1a\nxx", "s.svg": "<svg/>", "w.wav": "RIFF\x00\x00\x00\x00WAVEfmt ", "big": strings.Repeat("0123456789abcde\n", 100),
		"mode.sh": "#!/bin/sh\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	require.NoError(t, os.Chmod(root+"/mode.sh", 0o750))
	require.NoError(t, os.MkdirAll(root+"/links/in", 0o755))
	require.NoError(t, os.Mkdir(root+"/none", 0o755))
	require.NoError(t, os.Mkdir(root+"/link", 0o755))
	for link, to := range map[string]string{"links/file": "../big", "links/dir": "in", "links/out": "/etc/passwd", "links/nowhere": "no", "link/file": "../i.png"} {
		require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, os.Chtimes(root+"/a.txt", at, at))
}

// A server of files, as the Go SDK's client sees it. In what it says, its root
// is /workspace.
type fileServer struct {
	t      *testing.T
	client *mcp.ClientSession
	root   string
}

func startFileServer(t *testing.T, root string, cmd *exec.Cmd) *fileServer {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil).Connect(context.Background(), &mcp.CommandTransport{Command: cmd}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return &fileServer{t, c, root}
}

var (
	diffHeader = regexp.MustCompile(`(?m)^(Index: .*|=+|--- .*|\+\+\+ .*)\n`)
	times      = regexp.MustCompile(`(?m)^(created|accessed): .*\n`)
)

// said is a result's content, or "error" for one with isError: the texts of
// errors are for a model to read, and never alike. What is not said in an order,
// or in a form of its own, is put into one:
//   - entries, paths: theirs come as readdir gives them, or by the locale's
//     alphabet; ours by their bytes
//   - a diff's header: theirs holds the absolute path, ours is git's
//   - of a file's information: times, ours in RFC 3339, theirs as JavaScript
//     prints them; and theirs has when it was made and read, which a view does
//     not promise
func (s *fileServer) said(tool, args string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := s.client.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	require.NoError(s.t, err)
	if r.IsError {
		return "error"
	}
	var all []string
	for _, c := range r.Content {
		raw, err := c.MarshalJSON()
		require.NoError(s.t, err)
		text := string(raw)
		if c, ok := c.(*mcp.TextContent); ok {
			text = c.Text
		}
		all = append(all, strings.ReplaceAll(text, s.root, "/workspace"))
	}
	text := strings.Join(all, "\n+ ")
	switch tool {
	case "list_directory", "list_directory_with_sizes", "search_files":
		if strings.Contains(args, `"sortBy":"size"`) {
			return text
		}
		lines := strings.Split(text, "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	case "edit_file":
		return diffHeader.ReplaceAllString(text, "")
	case "get_file_info":
		var b strings.Builder
		for line := range strings.Lines(times.ReplaceAllString(text, "")) {
			for _, layout := range []string{time.RFC3339, "Mon Jan 2 2006 15:04:05 GMT-0700 (Coordinated Universal Time)"} {
				if at, err := time.Parse(layout, strings.TrimSpace(strings.TrimPrefix(line, "modified: "))); err == nil {
					line = "modified: " + at.UTC().Format(time.RFC3339) + "\n"
				}
			}
			b.WriteString(line)
		}
		return b.String()
	case "directory_tree":
		return sortedTree(s.t, text)
	}
	return text
}

func sortedTree(t *testing.T, text string) string {
	type branch struct {
		Name     string    `json:"name"`
		Type     string    `json:"type"`
		Children *[]branch `json:"children,omitempty"`
	}
	var top []branch
	require.NoError(t, json.Unmarshal([]byte(text), &top), text)
	var sort func([]branch)
	sort = func(all []branch) {
		slices.SortFunc(all, func(a, b branch) int { return strings.Compare(a.Name, b.Name) })
		for _, b := range all {
			if b.Children != nil {
				sort(*b.Children)
			}
		}
	}
	sort(top)
	sorted, err := json.Marshal(top)
	require.NoError(t, err)
	return string(sorted)
}

// TestClientsFilesystem makes the same calls, one after the other, to
// @modelcontextprotocol/server-filesystem on a plain directory and to an agent's
// tools under its names, and compares what both say and what is left.
func TestClientsFilesystem(t *testing.T) {
	need.Once(t)
	needClients(t)
	h := harness.NewHost(t, map[string]string{"a": ""})
	dir := t.TempDir()
	theirTree(t, dir)
	theirTree(t, h.Scope("a"))
	their := theirs(context.Background(), t, serverFilesystem, dir)
	their.Env = append(their.Env, "TZ=UTC")
	baseline := startFileServer(t, dir, their)
	ours := startFileServer(t, h.Scope("a"), exec.Command(harness.Program, "--base", h.Base, "mcp", "--agent", "a", "--profile", "mcp-fs"))
	for _, call := range sameCalls {
		tool, args, _ := strings.Cut(call, " ")
		want, got := baseline.said(tool, args), ours.said(tool, args)
		assert.Equal(t, want, got, "%s %s: differs, and no reason is given", tool, args)
	}
	assert.Equal(t, leftIn(t, dir), leftIn(t, h.Scope("a")), "what the calls left")
	for _, d := range otherCalls {
		tool, args, _ := strings.Cut(d.call, " ")
		assert.Equal(t, d.theirs, baseline.said(tool, args), "theirs: %s %s (%s)", tool, args, d.why)
		assert.Equal(t, d.ours, ours.said(tool, args), "ours: %s %s (%s)", tool, args, d.why)
	}
	listed, err := baseline.client.ListTools(context.Background(), nil)
	require.NoError(t, err)
	our, err := ours.client.ListTools(context.Background(), nil)
	require.NoError(t, err)
	for _, theirs := range listed.Tools {
		at := slices.IndexFunc(our.Tools, func(t *mcp.Tool) bool { return t.Name == theirs.Name })
		if !assert.GreaterOrEqual(t, at, 0, "there is no %s", theirs.Name) {
			continue
		}
		assert.ElementsMatch(t, properties(theirs), properties(our.Tools[at]), theirs.Name)
		assert.Equal(t, theirs.Annotations.ReadOnlyHint, our.Tools[at].Annotations.ReadOnlyHint, theirs.Name)
	}
}

// leftIn tells of each file below a directory what it is and what it holds.
func leftIn(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.Walk(root, func(name string, info os.FileInfo, err error) error {
		if err != nil || name == root {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text += " " + string(b)
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			text += " " + to
		}
		all[strings.TrimPrefix(name, root)] = text
		return nil
	}))
	return all
}

// properties are the names of a tool's arguments.
func properties(t *mcp.Tool) (all []string) {
	object, _ := t.InputSchema.(map[string]any)
	named, _ := object["properties"].(map[string]any)
	for name := range named {
		all = append(all, name)
	}
	return all
}
