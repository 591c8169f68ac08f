package profile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/sandbox"
)

type mcpSizes struct {
	mcpPath
	SortBy string `json:"sortBy,omitempty" limit:"enum=name|size,default=\"name\""`
}

type mcpTree struct {
	mcpPath
	Exclude []string `json:"excludePatterns,omitempty" jsonschema:"patterns of what to leave out"`
}

type mcpSearch struct {
	mcpPath
	Pattern string   `json:"pattern" limit:"len=1024" jsonschema:"such as *.ext for this directory, **/*.ext for all below"`
	Exclude []string `json:"excludePatterns,omitempty" jsonschema:"patterns of what to leave out"`
}

func mcpSearches(l *aliases) {
	reads := tools.Hints{Title: "List directory"}
	alias(l, "list_directory", "List a directory; [FILE] and [DIR] tell which is which.", reads, "list_dir",
		func(in mcpPath) (file.ListArgs, error) { return file.ListArgs{Path: in.Path, NamesOnly: true}, nil },
		func(_ mcpPath, r tools.Result) tools.Result {
			o := out[file.ListResult](r)
			var lines []string
			for _, e := range o.Entries {
				lines = append(lines, mcpKind(e)+" "+tools.Quote(path.Base(e.Path)))
			}
			return say("%s", strings.Join(cutShort(lines, o.NextCursor != ""), "\n"))
		})
	alias(l, "list_directory_with_sizes", "List a directory with the sizes of files.", reads, "list_dir",
		func(in mcpSizes) (file.ListArgs, error) { return file.ListArgs{Path: in.Path}, nil }, renderSizes)
	reads.Title = "Directory tree"
	alias(l, "directory_tree", "Show a directory and all below it as JSON: name, type, and of directories children.", reads, "glob",
		func(in mcpTree) (file.GlobArgs, error) {
			return file.GlobArgs{Path: in.Path, Pattern: "**", Limit: 5000}, checkAll(in.Exclude)
		}, renderTree)
	reads.Title = "Find by name"
	alias(l, "search_files", "Find files and directories by a pattern of their path.", reads, "glob",
		func(in mcpSearch) (file.GlobArgs, error) {
			return file.GlobArgs{Path: in.Path, Pattern: in.Pattern, Limit: 5000}, checkAll(in.Exclude)
		}, renderSearch)
	reads.Title = "File information"
	alias(l, "get_file_info", "Tell the size, time, type and permissions of a file or directory.", reads, "stat",
		func(in mcpPath) (file.StatArgs, error) { return file.StatArgs{Path: in.Path, Follow: true}, nil },
		func(_ mcpPath, r tools.Result) tools.Result {
			o := out[file.StatResult](r)
			return say("size: %d\nmodified: %s\nisDirectory: %t\nisFile: %t\npermissions: %s", o.Size, o.Modified,
				o.Type == "directory", o.Type == "file", o.Mode[max(0, len(o.Mode)-3):])
		})
}

func checkAll(patterns []string) error {
	for _, p := range patterns {
		if err := file.CheckPattern(p); err != nil {
			return err
		}
	}
	return nil
}

func mcpKind(e file.Listed) string {
	if e.Type == "directory" {
		return "[DIR]"
	}
	return "[FILE]"
}

func cutShort(lines []string, more bool) []string {
	if more {
		lines = append(lines, fmt.Sprintf("[there are more than these %d]", len(lines)))
	}
	return lines
}

func renderSizes(in mcpSizes, r tools.Result) tools.Result {
	o := out[file.ListResult](r)
	if in.SortBy == "size" {
		slices.SortStableFunc(o.Entries, func(a, b file.Listed) int { return cmp.Compare(b.Bytes(), a.Bytes()) })
	}
	var lines []string
	var files, dirs int
	var total int64
	for _, e := range o.Entries {
		size := ""
		if e.Type == "directory" {
			dirs++
		} else {
			files, total, size = files+1, total+e.Bytes(), fmt.Sprintf("%10s", sizeText(e.Bytes()))
		}
		lines = append(lines, fmt.Sprintf("%s %-30s %s", mcpKind(e), tools.Quote(path.Base(e.Path)), size))
	}
	lines = append(cutShort(lines, o.NextCursor != ""), "", fmt.Sprintf("Total: %d files, %d directories", files, dirs),
		"Combined size: "+sizeText(total))
	return say("%s", strings.Join(lines, "\n"))
}

// excluded reports whether a pattern matches a path. A pattern without a wildcard also
// matches a name at any depth.
func excluded(rel string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return doublestar.MatchUnvalidated(p, rel) || !strings.Contains(p, "*") && slices.Contains(strings.Split(rel, "/"), p)
	})
}

// branch is an entry of a directory's tree.
type branch struct {
	Name     string     `json:"name"`
	Type     string     `json:"type"`
	Children *[]*branch `json:"children,omitempty"`
}

func renderTree(in mcpTree, r tools.Result) tools.Result {
	o := out[file.GlobResult](r)
	slices.SortFunc(o.Matches, func(a, b file.Entry) int { return strings.Compare(a.Path, b.Path) })
	base, _ := message.Within(sandbox.Workspace, cmp.Or(in.Path, "."))
	dirs := map[string]*[]*branch{".": {}}
	for _, e := range o.Matches {
		rel := strings.TrimPrefix(e.Path, base+"/")
		above := dirs[path.Dir(rel)]
		if above == nil || excluded(rel, in.Exclude) {
			continue
		}
		b := &branch{Name: path.Base(rel), Type: "file"}
		if e.Type == "directory" {
			b.Type, b.Children = "directory", &[]*branch{}
			dirs[rel] = b.Children
		}
		*above = append(*above, b)
	}
	text, err := json.MarshalIndent(dirs["."], "", "  ")
	if err != nil {
		return say("%v", err)
	}
	if o.Truncated {
		return say("%s\n[there are more than these]", tools.PlainJSON(text))
	}
	return say("%s", tools.PlainJSON(text))
}

// full returns the absolute path of an entry: in a further directory it has that already.
func full(at string) string {
	if path.IsAbs(at) {
		return at
	}
	return sandbox.Workspace + "/" + at
}

func renderSearch(in mcpSearch, r tools.Result) tools.Result {
	o := out[file.GlobResult](r)
	base, _ := message.Within(sandbox.Workspace, cmp.Or(in.Path, "."))
	var lines []string
	for _, e := range o.Matches {
		if !excluded(strings.TrimPrefix(e.Path, base+"/"), in.Exclude) {
			lines = append(lines, tools.Quote(full(e.Path)))
		}
	}
	slices.Sort(lines)
	if len(lines) == 0 {
		return say("No matches found")
	}
	return say("%s", strings.Join(cutShort(lines, o.Truncated), "\n"))
}
