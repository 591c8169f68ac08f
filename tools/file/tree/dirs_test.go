package tree

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/file/message"
)

// TestApprovedInRoot: an approved call acts on the object that was approved, in a further directory too, whatever leads there meanwhile.
func TestApprovedInRoot(t *testing.T) {
	top := t.TempDir()
	for _, dir := range []string{"/proj", "/lib", "/lib/d", "/other"} {
		require.NoError(t, os.Mkdir(top+dir, 0o755))
		require.NoError(t, os.WriteFile(top+dir+"/f", []byte("before"), 0o644))
	}
	require.NoError(t, os.Symlink("../lib/d", top+"/proj/link"))
	require.NoError(t, os.Symlink("../other", top+"/proj/away"))
	dirs := message.Dirs{Own: top + "/proj", At: top + "/proj", Roots: []string{top + "/lib"}}
	object := func(path string) (message.HashResult, error) {
		args, err := json.Marshal(message.HashArgs{Path: path})
		require.NoError(t, err)
		reply, err := In(dirs)(t.Context(), &message.Request{Op: message.OpHash, Args: args})
		var r message.HashResult
		if err == nil {
			require.NoError(t, json.Unmarshal(reply.Result, &r))
		}
		return r, err
	}
	for path, at := range map[string]string{"link/f": top + "/lib/d/f", "../lib/f": top + "/lib/f", top + "/lib": top + "/lib",
		"../proj/f": "f", "../lib/new/f": top + "/lib/new/f", ".": "."} {
		r, err := object(path)
		require.NoError(t, err, path)
		assert.Equal(t, at, r.Path, path)
	}
	for _, path := range []string{"away/f", "../other/f", top + "/libs", "../lib/../other/f"} {
		r, err := object(path)
		if err != nil {
			assert.Equal(t, message.NotFound, asTold(t, err).Code, path)
		}
		assert.Zero(t, r, path)
	}

	write := func(path string, o message.HashResult) error {
		rel, _ := dirs.Resolve(path)
		args, err := json.Marshal(message.WriteArgs{Path: path})
		require.NoError(t, err)
		_, err = In(dirs)(t.Context(), &message.Request{Op: "write_file", Args: args, Blob: []byte("after"),
			Approved: map[string]message.Object{rel: {Path: o.Path, ID: o.ID}}})
		return err
	}
	approved, err := object("link/f")
	require.NoError(t, err)
	require.NoError(t, os.Remove(top+"/proj/link"))
	require.NoError(t, os.Symlink("../other", top+"/proj/link"))
	require.NoError(t, write("link/f", approved), "it writes what was approved")
	assertContent := func(name, want string) {
		b, err := os.ReadFile(top + name)
		require.NoError(t, err)
		assert.Equal(t, want, string(b), name)
	}
	assertContent("/lib/d/f", "after")
	assertContent("/other/f", "before")

	approved, err = object("../lib/d/f")
	require.NoError(t, err)
	require.NoError(t, os.Rename(top+"/lib/d", top+"/lib/was"))
	require.NoError(t, os.Symlink("../other", top+"/lib/d"))
	assert.Equal(t, message.Conflict, asTold(t, write("../lib/d/f", approved)).Code)
	assert.Equal(t, message.Conflict, asTold(t, write("../lib/f", message.HashResult{Path: top + "/other/f", ID: approved.ID})).Code)
	assertContent("/other/f", "before")
}
