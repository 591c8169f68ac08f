package file

import (
	"errors"
	"path"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// logged returns the path of a call for the log.
func logged(asked string) string {
	if rel, ok := message.Within(sandbox.Workspace, asked); ok {
		return rel
	}
	return path.Clean(asked)
}

// about returns what a call with one or two paths is about.
func about(why message.Intent, paths ...string) tools.About {
	of := tools.About{Path: logged(paths[0]), Outside: strayed(why, paths...)}
	if len(paths) > 1 {
		of.Target = logged(paths[1])
	}
	return of
}

// strayed returns the error of the first path that leads out of the view, before any
// link is resolved; nil if none does. The view itself records a link that leads outside.
func strayed(why message.Intent, paths ...string) *tools.Error {
	for _, asked := range paths {
		if _, inside := message.Within(sandbox.Workspace, asked); !inside {
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
