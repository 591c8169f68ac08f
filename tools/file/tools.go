package file

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file/message"
)

// Tools returns the native tools.
func (f *Files) Tools() ([]tools.Tool, error) {
	l := kit{files: f}
	add[ReadArgs, ReadResult](&l, "read_file", "Read a text file, or look at an image (PNG, JPEG, GIF, WebP): "+
		"at most 2000 lines and 256 KiB at a time; go on with offset. To find a text in many files use grep.",
		tools.Hints{Title: "Read file"})
	add[WriteArgs, WriteResult](&l, "write_file", "Create a file, replace its content at once, or append to it: "+
		"at most 4 MiB a call. Missing directories are made. To change part of a file use edit_file.",
		tools.Hints{Title: "Write file", Writes: true, Changes: true, Destructive: true})
	add[EditArgs, EditResult](&l, "edit_file", "Change parts of a text file of at most 8 MiB: each edit replaces a text that is "+
		"there exactly once, or inserts lines. All edits are made, or none. For a whole new content use write_file.",
		tools.Hints{Title: "Edit file", Writes: true, Changes: true, Destructive: true})
	add[ListArgs, ListResult](&l, "list_dir", "List a directory, sorted by name, up to 5 levels deep, up to 1000 entries a page. "+
		"To find names by a pattern use glob.",
		tools.Hints{Title: "List directory"})
	add[StatArgs, StatResult](&l, "stat", "Tell the type, size, permissions and time of one file, directory or link, and on demand its hash. "+
		"For many use list_dir.",
		tools.Hints{Title: "File information"})
	add[GlobArgs, GlobResult](&l, "glob", "Find files and directories by a pattern of their path, the last changed first, at most 5000. "+
		"Links are not followed; .git is left out unless it is named. To search in files use grep.",
		tools.Hints{Title: "Find by name"})
	add[GrepArgs, GrepResult](&l, "grep", "Search the content of files with a regular expression, for at most 5000 lines or files. "+
		"Binary files, files over 32 MiB and .git are left out. To find files by name use glob.",
		tools.Hints{Title: "Search content"})
	add[MakeDirArgs, message.MakeDirResult](&l, "make_dir",
		"Make one directory, with those above it; one that is there is no error. write_file needs none made before.",
		tools.Hints{Title: "Make directory", Writes: true, Changes: true, Idempotent: true})
	move, err := tools.New("move", "Move or rename one file, link or directory. A file that has the new path is replaced only with overwrite; "+
		"use copy to keep both.",
		tools.Hints{Title: "Move", Writes: true, Changes: true, Destructive: true}, f.move)
	l.take(placed[MoveArgs](f, move, err))
	add[copyArgs, message.CopyResult](&l, "copy",
		"Copy one file or link, or with recursive a directory with all that is in it. To rename use move.",
		tools.Hints{Title: "Copy", Writes: true, Changes: true, Destructive: true})
	add[deleteFileArgs, message.DeleteResult](&l, "delete_file",
		"Delete one file or link, not what the link leads to. For a directory use delete.",
		tools.Hints{Title: "Delete file", Writes: true, Changes: true, Destructive: true})
	add[deleteArgs, message.DeleteResult](&l, "delete", "Delete one directory: an empty one, or with recursive all that is in it. "+
		"Links are not followed. For a file use delete_file.",
		tools.Hints{Title: "Delete directory", Writes: true, Changes: true, Destructive: true})
	return l.tools, l.err
}

// kit collects tools and the errors of making them.
type kit struct {
	files *Files
	tools []tools.Tool
	err   error
}

func (l *kit) take(t tools.Tool, err error) {
	l.tools, l.err = append(l.tools, t), errors.Join(l.err, err)
}

func add[In located, Out any](l *kit, name, about string, hints tools.Hints) {
	op := operation{name, !hints.Writes}
	t, err := tools.New(name, about, hints, func(ctx context.Context, env tools.Env, in In) (Out, error) {
		return do[In, Out](ctx, l.files, env.Call, op, in)
	})
	l.take(placed[In](l.files, t, err))
}

// placed returns a tool whose paths are judged by the directories that the agent has at the call.
func placed[In located](f *Files, t tools.Tool, err error) (tools.Tool, error) {
	return tools.Placed(t, err, func(in In) tools.About { return in.aboutIn(f.dirs()) })
}

// move moves a name in the worker. The worker does not know which name the policy
// refused; the view's record does.
func (f *Files) move(ctx context.Context, env tools.Env, in MoveArgs) (message.MoveResult, error) {
	out, err := do[MoveArgs, message.MoveResult](ctx, f, env.Call, operation{name: "move"}, in)
	refused := f.RefusedFrom != nil && f.RefusedFrom(env.Call)
	if e, ok := errors.AsType[*tools.Error](err); ok && refused && e.Code == tools.Denied {
		e.Path = logged(f.dirs(), in.From)
		f.explain(env.Call, e)
	}
	return out, err
}

var hashForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sha256|tree):[0-9a-f]{64}$`) })

// Object returns the object at a path of a tool's call. Links are followed, except for
// tools that act on a link itself. Content is "sha256:" and 64 digits for a file; with
// tree, "tree:" and 64 digits for a directory, which change with its contents.
func (f *Files) Object(ctx context.Context, tool, path string, tree bool) (approvals.Object, error) {
	r, err := do[message.HashArgs, message.HashResult](ctx, f, "", operation{message.OpHash, true},
		message.HashArgs{Path: path, Tree: tree, Name: byName[tool]})
	if err == nil && (r.Hash != "" && !hashForm().MatchString(r.Hash) || len(r.Path) > maxObject || len(r.ID) > maxObject) {
		err = fmt.Errorf("file worker: no object: %q %q %q", r.Hash, r.Path, r.ID)
	}
	if err != nil {
		return approvals.Object{}, err
	}
	return approvals.Object{Path: r.Path, ID: r.ID, Content: r.Hash}, nil
}

// maxObject bounds the path and the id of an object from the worker, in bytes.
const maxObject = 8 << 10

// byName are the tools that act on a link itself, not on its target.
var byName = map[string]bool{"move": true, "copy": true, "delete": true, "delete_file": true, "make_dir": true}
