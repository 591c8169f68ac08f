package tree

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/message"
)

// TestApprovedObject: a call that was approved acts on what the operator was
// shown, or on nothing, whatever its path leads to by then.
func TestApprovedObject(t *testing.T) {
	steps := map[string]func(t *testing.T, root string){
		"nothing": func(*testing.T, string) {},
		"link pointed elsewhere": func(t *testing.T, root string) {
			require.NoError(t, os.Remove(root+"/l"))
			require.NoError(t, os.Symlink("d/b", root+"/l"))
		},
		"directory link pointed elsewhere": func(t *testing.T, root string) {
			require.NoError(t, os.Remove(root+"/dl"))
			require.NoError(t, os.Symlink("e", root+"/dl"))
		},
		"directory exchanged": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root+"/d", root+"/was"))
			require.NoError(t, os.Rename(root+"/e", root+"/d"))
		},
		"file exchanged": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root+"/d/b", root+"/d/a"))
		},
		"directory becomes a link": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root+"/d", root+"/was"))
			require.NoError(t, os.Symlink("e", root+"/d"))
		},
		"new directory becomes a link": func(t *testing.T, root string) {
			require.NoError(t, os.Symlink("e", root+"/new"))
		},
	}
	type call struct {
		op, path string
		args     any
	}
	calls := []call{
		{"write_file", "l", message.WriteArgs{Path: "l", Content: "WRITTEN"}},
		{"write_file", "dl/a", message.WriteArgs{Path: "dl/a", Content: "WRITTEN"}},
		{"write_file", "d/a", message.WriteArgs{Path: "d/a", Content: "WRITTEN", Mode: message.ModeAppend}},
		{"write_file", "dl/new", message.WriteArgs{Path: "dl/new", Content: "WRITTEN"}},
		{"write_file", "new/sub/f", message.WriteArgs{Path: "new/sub/f", Content: "WRITTEN"}},
		{"edit_file", "l", message.EditArgs{Path: "l", Edits: []message.Edit{{OldText: "same", NewText: "WRITTEN"}}}},
		{"delete_file", "dl/a", message.DeleteFileArgs{Path: "dl/a"}},
		{"delete_file", "l", message.DeleteFileArgs{Path: "l"}},
		{"make_dir", "dl/new", message.MakeDirArgs{Path: "dl/new"}},
		{"read_file", "l", message.ReadArgs{Path: "l"}},
	}
	for what, step := range steps {
		for _, c := range calls {
			t.Run(what+" "+c.op+" "+c.path, func(t *testing.T) {
				tr := newTree(t, map[string]string{"d/a": "same\n", "d/b": "same\n", "e/a": "same\n", "e/b": "same\n", "l => d/a": "", "dl => d": ""})
				other := func() (all []string) { // what must stay as it is
					for _, name := range []string{"d/b", "e/a", "e/b", "was/b"} {
						if b, err := os.ReadFile(filepath.Join(tr.dirs.Own, name)); err == nil && string(b) != "same\n" {
							all = append(all, name+": "+string(b))
						}
					}
					for _, name := range []string{"e/new", "e/sub"} {
						if _, err := os.Lstat(filepath.Join(tr.dirs.Own, name)); err == nil {
							all = append(all, name)
						}
					}
					return all
				}
				look, err := tr.hash(ctx(), message.HashArgs{Path: c.path, Tree: true, Name: c.op == "delete_file" || c.op == "make_dir"})
				require.NoError(t, err)
				require.NotEmpty(t, look.Path)
				tr.letGo()
				step(t, tr.dirs.Own)
				files := countFiles(tr.dirs.Own)
				args, err := json.Marshal(c.args)
				require.NoError(t, err)
				r := &message.Request{Op: c.op, Args: args, Approved: map[string]message.Object{c.path: {Path: look.Path, ID: look.ID}}}
				if w, ok := c.args.(message.WriteArgs); ok {
					r.Args, r.Blob = json.RawMessage(`{"path":"`+w.Path+`","mode":"`+string(w.Mode)+`","content":""}`), []byte(w.Content)
				}
				_, err = Below(tr.dirs.Own)(ctx(), r)
				if err != nil {
					assert.Equal(t, message.Conflict, asTold(t, err).Code, "%v", err)
					assert.Equal(t, files, countFiles(tr.dirs.Own))
				}
				if what == "nothing" {
					assert.NoError(t, err)
				}
				switch what {
				case "directory exchanged": // by its path d/a is another file now
					assert.NotContains(t, textAt(tr.dirs.Own, "d/a"), "WRITTEN")
				case "file exchanged":
					assert.NotContains(t, textAt(tr.dirs.Own, "d/a"), "WRITTEN")
				default:
					assert.Empty(t, other())
				}
			})
		}
	}
}

func countFiles(root string) (n int) {
	_ = filepath.WalkDir(root, func(string, os.DirEntry, error) error { n++; return nil })
	return n
}

func textAt(root, name string) string {
	b, _ := os.ReadFile(filepath.Join(root, name))
	return string(b)
}
