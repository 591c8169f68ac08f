package file

import (
	"errors"
	"path"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// located is arguments with paths of the agent's directories.
type located interface {
	aboutIn(dirs message.Dirs) tools.About
}

// Own returns the directories of an agent that has no further ones.
func Own() message.Dirs { return message.Dirs{Own: sandbox.Workspace} }

// logged returns the path of a call for the log.
func logged(dirs message.Dirs, asked string) string {
	if rel, ok := dirs.Resolve(asked); ok {
		return rel
	}
	return path.Clean(asked)
}

// about returns what a call with one or two paths is about.
func about(dirs message.Dirs, why message.Intent, paths ...string) tools.About {
	of := tools.About{Path: logged(dirs, paths[0]), Outside: strayed(dirs, why, paths...)}
	if len(paths) > 1 {
		of.Target = logged(dirs, paths[1])
	}
	return of
}

// strayed returns the error of the first path that leads out of the views, before any
// link is resolved; nil if none does. A view itself records a link that leads outside.
func strayed(dirs message.Dirs, why message.Intent, paths ...string) *tools.Error {
	for _, asked := range paths {
		if _, inside := dirs.Resolve(asked); !inside {
			return outside(tools.Clip(asked, maxPath), why)
		}
	}
	return nil
}

// maxPath bounds the path in an error, in bytes.
const maxPath = 8 << 10

// outside returns the error of a path outside of the view.
func outside(asked string, why message.Intent) *tools.Error {
	return toolError(message.Outside(asked, why))
}

// CheckPattern returns an error for an invalid glob pattern, and for one that would take
// too long to match.
func CheckPattern(pattern string) error {
	err := message.CheckPattern(pattern)
	if e, ok := errors.AsType[*message.Error](err); ok {
		return toolError(e)
	}
	return err
}

// toolError returns an error of the worker as one of a tool.
func toolError(e *message.Error) *tools.Error {
	return &tools.Error{Code: tools.Code(e.Code), Message: e.Message, Path: e.Path, Hint: e.Hint}
}
