package file

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
)

// The arguments and results of the tools, with what package tools asks of them.

type (
	// ReadArgs is [message.ReadArgs].
	ReadArgs message.ReadArgs
	// ReadResult is [message.ReadResult].
	ReadResult message.ReadResult
	// WriteArgs is [message.WriteArgs].
	WriteArgs message.WriteArgs
	// WriteResult is [message.WriteResult].
	WriteResult message.WriteResult
	// EditArgs is [message.EditArgs].
	EditArgs message.EditArgs
	// EditResult is [message.EditResult].
	EditResult message.EditResult
	// ListArgs is [message.ListArgs].
	ListArgs message.ListArgs
	// ListResult is [message.ListResult].
	ListResult message.ListResult
	// StatArgs is [message.StatArgs].
	StatArgs message.StatArgs
	// GlobArgs is [message.GlobArgs].
	GlobArgs message.GlobArgs
	// GlobResult is [message.GlobResult].
	GlobResult message.GlobResult
	// GrepArgs is [message.GrepArgs].
	GrepArgs message.GrepArgs
	// GrepResult is [message.GrepResult].
	GrepResult message.GrepResult
	// MakeDirArgs is [message.MakeDirArgs].
	MakeDirArgs message.MakeDirArgs
	// MoveArgs is [message.MoveArgs].
	MoveArgs       message.MoveArgs
	copyArgs       message.CopyArgs
	deleteFileArgs message.DeleteFileArgs
	deleteArgs     message.DeleteArgs

	// StatResult is [message.StatResult].
	StatResult = message.StatResult
	// Edit is [message.Edit].
	Edit = message.Edit
	// Entry is [message.Entry].
	Entry = message.Entry
	// Listed is [message.Listed].
	Listed = message.Listed
)

// What write_file and grep do.
const (
	ModeCreate    = message.ModeCreate
	OutputContent = message.OutputContent
	OutputFiles   = message.OutputFiles
	OutputCount   = message.OutputCount
)

func (a ReadArgs) aboutIn(dirs message.Dirs) tools.About { return about(dirs, message.Reading, a.Path) }

// Attach implements [message.Attacher]. The worker does not say of which type the content is.
func (r *ReadResult) Attach(b []byte) error {
	switch {
	case r.Text != "":
		return errors.New("text in two places")
	case r.MIME == "":
		r.Text = string(b)
	default:
		r.MIME, _, _ = strings.Cut(http.DetectContentType(b), ";")
		r.Data = b
	}
	return nil
}

// Content returns the text unchanged, and the offset at which to continue.
func (r ReadResult) Content() []tools.Content {
	if r.MIME != "" {
		return []tools.Content{{Data: r.Data, MIME: r.MIME}}
	}
	all := []tools.Content{{Text: r.Text}}
	if r.NextOffset > 0 {
		all = append(all, tools.Content{Text: fmt.Sprintf("[lines %d to %d; go on with offset %d]", r.Lines.Start, r.Lines.End, r.NextOffset)})
	}
	if r.Replaced > 0 {
		all = append(all, tools.Content{Text: printable.Replaced(r.Replaced)})
	}
	return all
}

func (a WriteArgs) aboutIn(dirs message.Dirs) tools.About {
	return about(dirs, message.Writing, a.Path)
}

// Detach implements [message.Detacher].
func (a *WriteArgs) Detach() []byte {
	b := []byte(a.Content)
	a.Content = ""
	return b
}

func (r WriteResult) Content() []tools.Content {
	what := "wrote"
	if r.Created {
		what = "created"
	}
	text := fmt.Sprintf("%s %s, %d bytes", what, tools.Quote(r.Path), r.Bytes)
	if r.InPlace {
		text += " (in place)"
	}
	return []tools.Content{{Text: text}}
}

func (a EditArgs) aboutIn(dirs message.Dirs) tools.About { return about(dirs, message.Writing, a.Path) }

func (r EditResult) Content() []tools.Content { return []tools.Content{{Text: r.Diff}} }

func (a ListArgs) aboutIn(dirs message.Dirs) tools.About { return about(dirs, message.Reading, a.Path) }

func (a StatArgs) aboutIn(dirs message.Dirs) tools.About { return about(dirs, message.Reading, a.Path) }

// aboutIn judges the pattern, too: one that is not absolute begins at Path.
func (a GlobArgs) aboutIn(dirs message.Dirs) tools.About {
	of := about(dirs, message.Reading, (*message.GlobArgs)(&a).From(dirs))
	of.Target = a.Pattern
	from := a.Pattern
	if !path.IsAbs(from) {
		from = path.Join(of.Path, from)
	}
	if of.Outside == nil && strayed(dirs, message.Reading, from) != nil {
		of.Outside = outside(a.Pattern, message.Reading)
	}
	return of
}

func (r GlobResult) Content() []tools.Content {
	var b strings.Builder
	for _, e := range r.Matches {
		b.WriteString(tools.Quote(e.Path))
		if e.Type == "directory" {
			b.WriteByte('/')
		}
		b.WriteByte('\n')
	}
	switch {
	case len(r.Matches) == 0:
		b.WriteString("no matches\n")
		if r.Hint != "" {
			fmt.Fprintf(&b, "[%s]\n", r.Hint)
		}
	case r.Truncated:
		b.WriteString("[there are more; narrow the pattern]\n")
	}
	b.WriteString(message.OddNames(r.Matches, func(e message.Entry) string { return e.Path }))
	return []tools.Content{{Text: b.String()}}
}

func (a GrepArgs) aboutIn(dirs message.Dirs) tools.About {
	of := about(dirs, message.Reading, a.Path)
	of.Target = a.Pattern
	return of
}

// Content returns the matches as ripgrep prints them.
func (r GrepResult) Content() []tools.Content {
	return []tools.Content{{Text: message.GrepResult(r).Text()}}
}

func (a MakeDirArgs) aboutIn(dirs message.Dirs) tools.About {
	return about(dirs, message.Writing, a.Path)
}

func (a MoveArgs) aboutIn(dirs message.Dirs) tools.About {
	return about(dirs, message.Writing, a.From, a.To)
}

func (a deleteFileArgs) aboutIn(dirs message.Dirs) tools.About {
	return about(dirs, message.Writing, a.Path)
}

func (a deleteArgs) aboutIn(dirs message.Dirs) tools.About {
	return about(dirs, message.Writing, a.Path)
}

func (a copyArgs) aboutIn(dirs message.Dirs) tools.About {
	return tools.About{Path: logged(dirs, a.From), Target: logged(dirs, a.To),
		Outside: cmp.Or(strayed(dirs, message.Reading, a.From), strayed(dirs, message.Writing, a.To))}
}

// Content returns a line for each entry: a directory with a slash, a file with its size if known.
func (r ListResult) Content() []tools.Content {
	return []tools.Content{{Text: message.ListResult(r).Text()}}
}
