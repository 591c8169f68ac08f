package tree

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

// all lists the names of a tree, with contents and link targets.
func (t *tree) all(tt testing.TB) (found []string) {
	require.NoError(tt, (&walker{ctx: ctx(), git: true, visit: func(p place, below string, d os.DirEntry) error {
		switch d.Type() {
		case os.ModeSymlink:
			to, _ := os.Readlink(p.full)
			below += " => " + to
		case os.ModeDir:
			below += "/"
		case 0:
			b, _ := os.ReadFile(p.full)
			below += ": " + string(b)
		}
		found = append(found, below)
		return nil
	}}).walk(place{full: t.dirs.Own, rel: ".", dir: t.dirs.Own}, "", 1))
	return found
}

func TestOperations(t *testing.T) {
	files := map[string]string{"a": "A", "b": "B", "d/f": "F", "d/e/g": "G", "l => a": "", "dl => d": "", "d/up => ../a": "", "empty/": ""}
	whole := []string{"a: A", "b: B", "d/", "d/e/", "d/e/g: G", "d/f: F", "d/up => ../a", "dl => d", "empty/", "l => a"}
	with := func(more ...string) []string { return more }
	for name, test := range map[string]struct {
		in   any
		code message.Code
		path string   // in the error
		then []string // nil: nothing changed
	}{
		"make":                {in: message.MakeDirArgs{Path: "a"}, code: message.Conflict, path: "a"},
		"make there":          {in: message.MakeDirArgs{Path: "d"}},
		"make root":           {in: message.MakeDirArgs{Path: "."}},
		"make outside":        {in: message.MakeDirArgs{Path: "../x"}, code: message.OutsideScope, path: "../x"},
		"make below a file":   {in: message.MakeDirArgs{Path: "a/x"}, code: message.Invalid, path: "a/x"},
		"move":                {in: message.MoveArgs{From: "a", To: "empty/n"}, then: with("b: B", "d/", "d/e/", "d/e/g: G", "d/f: F", "d/up => ../a", "dl => d", "empty/", "empty/n: A", "l => a")},
		"move onto":           {in: message.MoveArgs{From: "a", To: "b"}, code: message.Conflict, path: "b"},
		"move over":           {in: message.MoveArgs{From: "a", To: "b", Overwrite: true}, then: with("b: A", "d/", "d/e/", "d/e/g: G", "d/f: F", "d/up => ../a", "dl => d", "empty/", "l => a")},
		"move nothing":        {in: message.MoveArgs{From: "no", To: "b"}, code: message.NotFound, path: "no"},
		"move to nowhere":     {in: message.MoveArgs{From: "a", To: "no/b"}, code: message.NotFound, path: "no/b"},
		"move into itself":    {in: message.MoveArgs{From: "d", To: "d/e/d"}, code: message.Invalid, path: "d/e/d"},
		"move root":           {in: message.MoveArgs{From: ".", To: "d/e/d"}, code: message.Invalid, path: "."},
		"move out":            {in: message.MoveArgs{From: "a", To: "../a"}, code: message.OutsideScope, path: "../a"},
		"move in":             {in: message.MoveArgs{From: "/etc/hostname", To: "h"}, code: message.OutsideScope, path: "/etc/hostname"},
		"move over directory": {in: message.MoveArgs{From: "a", To: "d", Overwrite: true}, code: message.Invalid, path: "d"},
		"copy":                {in: message.CopyArgs{From: "a", To: "a2"}, then: append([]string{"a: A", "a2: A"}, whole[1:]...)},
		"copy onto":           {in: message.CopyArgs{From: "a", To: "b"}, code: message.Conflict, path: "b"},
		"copy over":           {in: message.CopyArgs{From: "a", To: "b", Overwrite: true}, then: append([]string{"a: A", "b: A"}, whole[2:]...)},
		"copy onto itself":    {in: message.CopyArgs{From: "a", To: "a", Overwrite: true}, code: message.Invalid, path: "a"},
		"copy link":           {in: message.CopyArgs{From: "l", To: "m"}, then: append(append([]string{}, whole...), "m => a")},
		"copy tree":           {in: message.CopyArgs{From: "d", To: "z", Recursive: true}, then: append(append([]string{}, whole...), "z/", "z/e/", "z/e/g: G", "z/f: F", "z/up => ../a")},
		"copy tree, plainly":  {in: message.CopyArgs{From: "d", To: "z"}, code: message.Invalid, path: "d"},
		"copy into itself":    {in: message.CopyArgs{From: "d", To: "d/e/z", Recursive: true}, code: message.Invalid, path: "d/e/z"},
		"by a link":           {in: message.CopyArgs{From: "d", To: "dl/z", Recursive: true}, code: message.Invalid, path: "dl/z"},
		"copy tree onto":      {in: message.CopyArgs{From: "d", To: "empty", Recursive: true}, code: message.Conflict, path: "empty"},
		"copy merges": {in: message.CopyArgs{From: "d", To: "empty", Recursive: true, Overwrite: true}, then: with("a: A", "b: B", "d/", "d/e/", "d/e/g: G", "d/f: F", "d/up => ../a", "dl => d",
			"empty/", "empty/e/", "empty/e/g: G", "empty/f: F", "empty/up => ../a", "l => a")},
		"copy from outside": {in: message.CopyArgs{From: "/etc/passwd", To: "p"}, code: message.NotFound, path: "/etc/passwd"},
		"copy out":          {in: message.CopyArgs{From: "a", To: "/tmp/p"}, code: message.OutsideScope, path: "/tmp/p"},
		"copy to nowhere":   {in: message.CopyArgs{From: "a", To: "no/p"}, code: message.NotFound, path: "no/p"},
		"delete file":       {in: message.DeleteFileArgs{Path: "b"}, then: append([]string{"a: A"}, whole[2:]...)},
		"delete link":       {in: message.DeleteFileArgs{Path: "l"}, then: whole[:len(whole)-1]},
		"delete file, dir":  {in: message.DeleteFileArgs{Path: "d"}, code: message.Invalid, path: "d"},
		"delete nothing":    {in: message.DeleteFileArgs{Path: "no"}, code: message.NotFound, path: "no"},
		"delete outside":    {in: message.DeleteFileArgs{Path: "../no"}, code: message.OutsideScope, path: "../no"},
		"delete empty":      {in: message.DeleteArgs{Path: "empty"}, then: append(append([]string{}, whole[:8]...), "l => a")},
		"delete full":       {in: message.DeleteArgs{Path: "d"}, code: message.Conflict, path: "d"},
		"delete tree":       {in: message.DeleteArgs{Path: "d", Recursive: true}, then: with("a: A", "b: B", "dl => d", "empty/", "l => a")},
		"delete, a link":    {in: message.DeleteArgs{Path: "dl", Recursive: true}, code: message.Invalid, path: "dl"},
		"delete, a file":    {in: message.DeleteArgs{Path: "a", Recursive: true}, code: message.Invalid, path: "a"},
		"delete root":       {in: message.DeleteArgs{Path: "x/..", Recursive: true}, code: message.Invalid, path: "."},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, files)
			err := operate(tr, ctx(), test.in)
			if test.code != "" {
				e := asTold(t, err)
				assert.Equal(t, test.code, e.Code, e.Error())
				assert.Equal(t, test.path, e.Path)
				assert.NotContains(t, e.Error(), tr.dirs.Own)
			} else {
				assert.NoError(t, err)
			}
			if test.then == nil {
				test.then = whole
			}
			assert.Equal(t, test.then, tr.all(t))
		})
	}
}

func operate(tr *tree, c context.Context, in any) (err error) {
	switch in := in.(type) {
	case message.MakeDirArgs:
		_, err = tr.makeDir(c, in)
	case message.MoveArgs:
		_, err = tr.move(c, in)
	case message.CopyArgs:
		_, err = tr.copy(c, in)
	case message.DeleteFileArgs:
		_, err = tr.deleteFile(c, in)
	case message.DeleteArgs:
		_, err = tr.delete(c, in)
	}
	return err
}

func TestCopyKeepsModes(t *testing.T) {
	tr := newTree(t, map[string]string{"d/f": strings.Repeat("x", 9<<20), "d/sub/": ""})
	require.NoError(t, os.Chmod(tr.dirs.Own+"/d/f", 0o750))
	require.NoError(t, os.Chmod(tr.dirs.Own+"/d/sub", 0o700))
	require.NoError(t, unix.Mkfifo(tr.dirs.Own+"/d/fifo", 0o644))
	r, err := tr.copy(ctx(), message.CopyArgs{From: "d", To: "e", Recursive: true})
	require.NoError(t, err)
	assert.Equal(t, message.CopyResult{From: "d", To: "e", Copied: 3, Bytes: 9 << 20, Skipped: 1}, r)
	for name, mode := range map[string]os.FileMode{"f": 0o750, "sub": 0o700 | os.ModeDir, ".": 0o755 | os.ModeDir} {
		info, err := os.Stat(tr.dirs.Own + "/e/" + name)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), name)
	}
	_, err = tr.copy(ctx(), message.CopyArgs{From: "d/fifo", To: "g"})
	assert.Equal(t, message.Invalid, asTold(t, err).Code)
}

// What ends half way says how far it came.
func TestHalfWay(t *testing.T) {
	tr := newTree(t, map[string]string{"d/": ""})
	for n := range 50 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/d/%02d", tr.dirs.Own, n), nil, 0o644))
	}
	c, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := tr.copy(c, message.CopyArgs{From: "d", To: "e", Recursive: true})
	assert.Equal(t, "0 copied before that", asTold(t, err).Hint)
	asNobody(t, func() {
		require.NoError(t, os.Mkdir(tr.dirs.Own+"/d/sub", 0o755))
		require.NoError(t, os.WriteFile(tr.dirs.Own+"/d/sub/f", nil, 0o644))
		require.NoError(t, os.Chmod(tr.dirs.Own+"/d/sub", 0o555))
		_, err = tr.delete(ctx(), message.DeleteArgs{Path: "d", Recursive: true})
		e := asTold(t, err)
		assert.Equal(t, message.Denied, e.Code)
		assert.Equal(t, "d/sub/f", e.Path)
		assert.Regexp(t, `^\d+ deleted before that$`, e.Hint)
		require.NoError(t, os.Chmod(tr.dirs.Own+"/d/sub", 0o755))
	}, tr.dirs.Own)
}

// Links are deleted, not what they lead to, however many
// there are.
func TestDeleteManyNames(t *testing.T) {
	tr := newTree(t, map[string]string{"keep": "x", "d/": ""})
	for n := range 2500 {
		require.NoError(t, os.Symlink("../keep", fmt.Sprintf("%s/d/%d", tr.dirs.Own, n)))
	}
	r, err := tr.delete(ctx(), message.DeleteArgs{Path: "d", Recursive: true})
	require.NoError(t, err)
	assert.Equal(t, 2501, r.Deleted)
	assert.Equal(t, []string{"keep: x"}, tr.all(t))
}
