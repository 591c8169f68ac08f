package profile

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
)

// The names, arguments and texts are those of @modelcontextprotocol/server-filesystem.

type mcpPath struct {
	Path string `json:"path" jsonschema:"relative to the workspace, or absolute"`
}

type mcpRead struct {
	mcpPath
	Head int `json:"head,omitempty" limit:"min=0,max=100000" jsonschema:"only the first so many lines"`
	Tail int `json:"tail,omitempty" limit:"min=0,max=100000" jsonschema:"only the last so many lines"`
}

type mcpPaths struct {
	Paths []string `json:"paths" limit:"items=50" jsonschema:"the files to read"`
}

type mcpNone struct{}

func mcpReads(l *aliases) {
	for name, about := range map[string]string{"read_file": "Read a text file. (Deprecated: use read_text_file.)",
		"read_text_file": "Read a text file: all of it, or with head or tail its first or last lines."} {
		alias(l, name, about, tools.Hints{Title: "Read file"}, "read_file",
			func(in mcpRead) (file.ReadArgs, error) {
				if in.Head > 0 && in.Tail > 0 {
					return file.ReadArgs{}, tools.Errorf(tools.Invalid, "Cannot specify both head and tail parameters simultaneously")
				}
				if in.Head == 0 && in.Tail == 0 {
					in.Head = 100000
				}
				return file.ReadArgs{Path: in.Path, Limit: in.Head, Tail: in.Tail}, nil
			},
			func(in mcpRead, r tools.Result) tools.Result {
				o := out[file.ReadResult](r)
				switch {
				case o.MIME != "":
					return tools.Result{Content: r.Content}
				case in.Head > 0 || in.Tail > 0: // asked for: no hint to go on
					return say("%s", strings.TrimSuffix(o.Text, "\n"))
				}
				return tools.Result{Content: r.Content}
			})
	}
	alias(l, "read_media_file", "Look at an image (PNG, JPEG, GIF, WebP), listen to audio, or take another binary file as it is.",
		tools.Hints{Title: "Read media"}, "read_file",
		func(in mcpPath) (file.ReadArgs, error) { return file.ReadArgs{Path: in.Path, Media: true}, nil }, renderMedia)
	aliasOf(l, "read_multiple_files", "Read several text files. One that cannot be read is told among them.",
		tools.Hints{Title: "Read files"}, []string{"read_file"},
		func(in mcpPaths) (calls []tools.Inner, err error) {
			if len(in.Paths) == 0 {
				return nil, tools.Errorf(tools.Invalid, "paths: at least one is wanted")
			}
			for _, path := range in.Paths {
				calls = append(calls, tools.Inner{Tool: "read_file", Args: file.ReadArgs{Path: path, Limit: 100000}, Optional: true})
			}
			return calls, nil
		},
		func(in mcpPaths, all []tools.Result) tools.Result {
			var texts []string
			for i, r := range all {
				if r.Structured == nil {
					texts = append(texts, tools.Quote(in.Paths[i])+": Error - "+r.Content[0].Text)
					continue
				}
				texts = append(texts, tools.Quote(in.Paths[i])+":\n"+out[file.ReadResult](r).Text+"\n")
			}
			return say("%s", strings.Join(texts, "\n---\n"))
		})
	aliasOf(l, "list_allowed_directories", "Tell which directories can be reached.",
		tools.Hints{Title: "Allowed directories"}, []string{"stat"},
		func(mcpNone) ([]tools.Inner, error) {
			return []tools.Inner{{Tool: "stat", Args: file.StatArgs{Path: "."}}}, nil
		},
		func(mcpNone, []tools.Result) tools.Result {
			return say("Allowed directories:\n%s", strings.Join(l.reached(), "\n"))
		})
}

// audioTypes are the MIME types that net/http does not detect, or names otherwise.
var audioTypes = map[string]string{".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg", ".flac": "audio/flac"}

func renderMedia(in mcpPath, r tools.Result) tools.Result {
	all := slices.Clone(r.Content)
	for i, c := range all {
		if mime := audioTypes[strings.ToLower(path.Ext(in.Path))]; mime != "" && c.MIME != "" && !strings.HasPrefix(c.MIME, "image/") {
			all[i].MIME = mime
		}
	}
	return tools.Result{Content: all}
}

type mcpWrite struct {
	mcpPath
	Content string `json:"content" limit:"len=4194304" jsonschema:"the whole content"`
}

type mcpChange struct {
	OldText string `json:"oldText" limit:"len=1048576" jsonschema:"the text to replace, which must be there once"`
	NewText string `json:"newText" limit:"len=1048576" jsonschema:"the text in its place"`
}

type mcpEdit struct {
	mcpPath
	Edits  []mcpChange `json:"edits" limit:"items=200" jsonschema:"made in order, all or none"`
	DryRun bool        `json:"dryRun,omitempty" jsonschema:"only show the diff"`
}

type mcpMove struct {
	Source      string `json:"source" jsonschema:"what to move"`
	Destination string `json:"destination" jsonschema:"its new path"`
}

func mcpWrites(l *aliases) {
	writes := tools.Hints{Title: "Write file", Writes: true, Destructive: true}
	alias(l, "write_file", "Create a file, or replace its content.", writes, "write_file",
		func(in mcpWrite) (file.WriteArgs, error) {
			return file.WriteArgs{Path: in.Path, Content: in.Content}, nil
		},
		func(in mcpWrite, _ tools.Result) tools.Result {
			return say("Successfully wrote to %s", tools.Quote(in.Path))
		})
	writes.Title = "Edit file"
	alias(l, "edit_file", "Replace texts in a file, each of which must be there once. The result is a diff.", writes, "edit_file",
		func(in mcpEdit) (file.EditArgs, error) {
			a := file.EditArgs{Path: in.Path, DryRun: in.DryRun, Edits: []file.Edit{}}
			for _, e := range in.Edits {
				a.Edits = append(a.Edits, file.Edit{OldText: e.OldText, NewText: e.NewText})
			}
			return a, nil
		}, renderDiff)
	writes.Title = "Move"
	alias(l, "move_file", "Move or rename a file or directory. What is at the destination already stays.", writes, "move",
		func(in mcpMove) (file.MoveArgs, error) {
			return file.MoveArgs{From: in.Source, To: in.Destination}, nil
		},
		func(in mcpMove, _ tools.Result) tools.Result {
			return say("Successfully moved %s to %s", tools.Quote(in.Source), tools.Quote(in.Destination))
		})
	alias(l, "create_directory", "Make a directory, with those above it.",
		tools.Hints{Title: "Make directory", Writes: true, Idempotent: true}, "make_dir",
		func(in mcpPath) (file.MakeDirArgs, error) { return file.MakeDirArgs{Path: in.Path}, nil },
		func(in mcpPath, _ tools.Result) tools.Result {
			return say("Successfully created directory %s", tools.Quote(in.Path))
		})
}

// renderDiff fences a diff with more backticks than it contains.
func renderDiff(_ mcpEdit, r tools.Result) tools.Result {
	o := out[file.EditResult](r)
	fence := "```"
	for strings.Contains(o.Diff, fence) {
		fence += "`"
	}
	return say("%sdiff\n%s%s\n\n", fence, o.Diff, fence)
}

// sizeText formats a number of bytes as that server does.
func sizeText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", max(n, 0))
	}
	f := float64(n)
	for _, unit := range []string{"KB", "MB", "GB", "TB"} {
		if f /= 1024; f < 1024 || unit == "TB" {
			return fmt.Sprintf("%.2f %s", f, unit)
		}
	}
	return ""
}
