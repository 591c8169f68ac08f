package profile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
)

type claudeRead struct {
	FilePath string `json:"file_path" jsonschema:"the file to read"`
	Offset   int    `json:"offset,omitempty" limit:"min=0,max=1000000000" jsonschema:"the line to begin at"`
	Limit    int    `json:"limit,omitempty" limit:"min=1,max=100000" jsonschema:"how many lines to read"`
}

type claudeWrite struct {
	FilePath string `json:"file_path" jsonschema:"the file to write"`
	Content  string `json:"content" limit:"len=4194304" jsonschema:"its whole content"`
}

type claudeChange struct {
	OldString  string `json:"old_string" limit:"len=1048576" jsonschema:"the text to replace"`
	NewString  string `json:"new_string" limit:"len=1048576" jsonschema:"the text in its place"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"replace every occurrence"`
}

type claudeEdit struct {
	FilePath string `json:"file_path" jsonschema:"the file to change"`
	claudeChange
}

type claudeMultiEdit struct {
	FilePath string         `json:"file_path" jsonschema:"the file to change"`
	Edits    []claudeChange `json:"edits" limit:"items=200" jsonschema:"made in order, all or none"`
}

type claudeGlob struct {
	Pattern string `json:"pattern" limit:"len=1000" jsonschema:"such as **/*.js"`
	Path    string `json:"path,omitempty" jsonschema:"the directory to search"`
}

type claudeLS struct {
	Path string `json:"path" jsonschema:"the directory to list"`
}

func claude(l *aliases) {
	reads, writes := tools.Hints{Title: "Read"}, tools.Hints{Title: "Write", Writes: true, Destructive: true}
	alias(l, "Read", "Read a file, with line numbers as of cat -n; or look at an image.", reads, "read_file",
		func(in claudeRead) (file.ReadArgs, error) {
			return file.ReadArgs{Path: in.FilePath, Offset: in.Offset, Limit: in.Limit}, nil
		},
		func(_ claudeRead, r tools.Result) tools.Result {
			o := out[file.ReadResult](r)
			if o.MIME != "" {
				return tools.Result{Content: r.Content}
			}
			return say("%s", numberedText(o))
		})
	alias(l, "Write", "Write a file, over the one that is there.", writes, "write_file",
		func(in claudeWrite) (file.WriteArgs, error) {
			return file.WriteArgs{Path: in.FilePath, Content: in.Content}, nil
		},
		func(in claudeWrite, r tools.Result) tools.Result { return saidWritten(in.FilePath, r) })
	writes.Title = "Edit"
	aliasOf(l, "Edit",
		"Replace a text in a file. It must be there once, unless replace_all is set. An empty old_string makes a new file.", writes,
		[]string{"edit_file", "write_file"}, claudeEditCalls, func(in claudeEdit, all []tools.Result) tools.Result {
			if in.OldString == "" {
				return saidWritten(in.FilePath, all[0])
			}
			return saidEdited(in.FilePath, all[0])
		})
	writes.Title = "Edit, several times"
	alias(l, "MultiEdit", "Replace several texts in a file, all or none.", writes, "edit_file",
		func(in claudeMultiEdit) (file.EditArgs, error) {
			a := file.EditArgs{Path: in.FilePath, Edits: []file.Edit{}}
			for _, e := range in.Edits {
				a.Edits = append(a.Edits, file.Edit{OldText: e.OldString, NewText: e.NewString, ReplaceAll: e.ReplaceAll})
			}
			return a, nil
		},
		func(in claudeMultiEdit, r tools.Result) tools.Result { return saidEdited(in.FilePath, r) })
	reads.Title = "Find by name"
	alias(l, "Glob", "Find files by a pattern, the last changed first.", reads, "glob",
		func(in claudeGlob) (file.GlobArgs, error) {
			if !strings.Contains(in.Pattern, "/") { // at any depth, as ripgrep has it
				in.Pattern = "**/" + in.Pattern
			}
			return file.GlobArgs{Pattern: in.Pattern, Path: in.Path, Limit: 1000}, nil
		}, renderGlob)
	reads.Title = "Search content"
	alias(l, "Grep", "Search the content of files with a regular expression (RE2).", reads, "grep", claudeGrepArgs, renderGrep)
	reads.Title = "List directory"
	alias(l, "LS", "List a directory.", reads, "list_dir",
		func(in claudeLS) (file.ListArgs, error) { return file.ListArgs{Path: in.Path}, nil },
		func(_ claudeLS, r tools.Result) tools.Result { return tools.Result{Content: r.Content} })
}

func claudeEditCalls(in claudeEdit) ([]tools.Inner, error) {
	if in.OldString == "" {
		return []tools.Inner{{Tool: "write_file", Args: file.WriteArgs{Path: in.FilePath, Content: in.NewString, Mode: file.ModeCreate}}}, nil
	}
	return []tools.Inner{{Tool: "edit_file", Args: file.EditArgs{Path: in.FilePath,
		Edits: []file.Edit{{OldText: in.OldString, NewText: in.NewString, ReplaceAll: in.ReplaceAll}}}}}, nil
}

func saidWritten(path string, r tools.Result) tools.Result {
	if out[file.WriteResult](r).Created {
		return say("File created successfully at: %s", tools.Quote(path))
	}
	return say("The file %s has been updated.", tools.Quote(path))
}

func saidEdited(path string, r tools.Result) tools.Result {
	return say("The file %s has been updated.\n%s", tools.Quote(path), out[file.EditResult](r).Diff)
}

func renderGlob(_ claudeGlob, r tools.Result) tools.Result {
	o := out[file.GlobResult](r)
	var b strings.Builder
	for _, e := range o.Matches {
		if e.Type != "directory" {
			b.WriteString(tools.Quote(e.Path) + "\n")
		}
	}
	if b.Len() == 0 {
		b.WriteString("No files found\n")
	}
	if o.Truncated {
		b.WriteString("(Results are truncated. Consider using a more specific path or pattern.)\n")
	}
	return say("%s", b.String())
}

type claudeGrep struct {
	Pattern    string `json:"pattern" limit:"len=1024" jsonschema:"the regular expression"`
	Path       string `json:"path,omitempty" jsonschema:"the file or directory to search"`
	Glob       string `json:"glob,omitempty" limit:"len=1024" jsonschema:"only files that match, such as *.js"`
	Type       string `json:"type,omitempty" limit:"enum=c|cpp|css|go|html|java|js|json|md|php|py|ruby|rust|sh|sql|ts|txt|xml|yaml" jsonschema:"only files of this kind"`
	OutputMode string `json:"output_mode,omitempty" limit:"enum=content|files_with_matches|count,default=\"files_with_matches\""`
	After      int    `json:"-A,omitempty" limit:"min=0,max=20" jsonschema:"lines after each match"`
	Before     int    `json:"-B,omitempty" limit:"min=0,max=20" jsonschema:"lines before each match"`
	Context    int    `json:"-C,omitempty" limit:"min=0,max=20" jsonschema:"lines before and after each match"`
	Numbers    *bool  `json:"-n,omitempty" jsonschema:"show line numbers (default true)"`
	IgnoreCase bool   `json:"-i,omitempty" jsonschema:"ignore case"`
	HeadLimit  int    `json:"head_limit,omitempty" limit:"min=0,max=5000" jsonschema:"most lines or files"`
	Multiline  bool   `json:"multiline,omitempty" jsonschema:"a match may span lines"`
}

// globsOf maps a file type to its glob when that is not "*." and the type.
var globsOf = map[string]string{
	"c": "*.{c,h}", "cpp": "*.{cpp,cc,cxx,hpp,hh,h}", "html": "*.{html,htm}", "js": "*.{js,jsx,mjs,cjs}", "md": "*.{md,markdown}",
	"py": "*.{py,pyi}", "ruby": "*.rb", "rust": "*.rs", "sh": "*.{sh,bash,zsh}", "ts": "*.{ts,tsx,mts,cts}", "yaml": "*.{yaml,yml}",
}

func claudeGrepArgs(in claudeGrep) (file.GrepArgs, error) {
	a := file.GrepArgs{Pattern: in.Pattern, Path: in.Path, Glob: in.Glob, IgnoreCase: in.IgnoreCase, Multiline: in.Multiline,
		Context: in.Context, Before: in.Before, After: in.After, Limit: in.HeadLimit, Output: file.OutputFiles}
	if in.Type != "" {
		if in.Glob != "" {
			return a, tools.Errorf(tools.Invalid, "type and glob exclude each other")
		}
		a.Glob = cmp.Or(globsOf[in.Type], "*."+in.Type)
	}
	switch in.OutputMode {
	case "content":
		a.Output = file.OutputContent
	case "count":
		a.Output = file.OutputCount
	}
	return a, nil
}

func renderGrep(in claudeGrep, r tools.Result) tools.Result {
	o := out[file.GrepResult](r)
	switch {
	case len(o.Files) == 0 && in.OutputMode == "content":
		return say("No matches found")
	case len(o.Files) == 0:
		return say("No files found")
	case in.OutputMode != "content" && in.OutputMode != "count":
		return say("Found %d files\n%s", len(o.Files), o.Content()[0].Text)
	case in.OutputMode == "content" && in.Numbers != nil && !*in.Numbers:
		var b strings.Builder
		for _, f := range o.Files {
			f.Print(&b, false)
		}
		return say("%s", b.String())
	}
	return say("%s", fmt.Sprint(o.Content()[0].Text))
}
