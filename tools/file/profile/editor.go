package profile

import (
	"cmp"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
)

// editorArgs are the arguments of the text editor tool of Anthropic's models.
type editorArgs struct {
	Command    string `json:"command" limit:"enum=view|create|str_replace|insert"`
	Path       string `json:"path" jsonschema:"the file, or for view a directory"`
	ViewRange  []int  `json:"view_range,omitempty" limit:"items=2,min=-1,max=1000000000" jsonschema:"view: first and last line, from 1; -1 is the end"`
	FileText   string `json:"file_text,omitempty" limit:"len=4194304" jsonschema:"create: the content"`
	OldStr     string `json:"old_str,omitempty" limit:"len=1048576" jsonschema:"str_replace: the text to replace, which must be there once"`
	NewStr     string `json:"new_str,omitempty" limit:"len=1048576" jsonschema:"str_replace: the text in its place"`
	InsertLine *int   `json:"insert_line,omitempty" limit:"min=0,max=10000000" jsonschema:"insert: the line after which to insert; 0 is the beginning"`
	InsertText string `json:"insert_text,omitempty" limit:"len=1048576" jsonschema:"insert: the text"`
}

func anthropicEditor(l *aliases) {
	aliasOf(l, "str_replace_based_edit_tool", "View, create and change text files. view lists a directory; create does not replace a file.",
		tools.Hints{Title: "Edit files", Writes: true, Destructive: true},
		[]string{"read_file", "write_file", "edit_file"}, editorCalls, renderEditor)
}

func editorCalls(in editorArgs) ([]tools.Inner, error) {
	one := func(tool string, args any) ([]tools.Inner, error) {
		return []tools.Inner{{Tool: tool, Args: args}}, nil
	}
	switch in.Command {
	case "view":
		a := file.ReadArgs{Path: in.Path, List: true}
		if len(in.ViewRange) > 0 {
			first, last := in.ViewRange[0], in.ViewRange[len(in.ViewRange)-1]
			if len(in.ViewRange) != 2 || first < 1 || last != -1 && last < first {
				return nil, tools.Errorf(tools.Invalid, "view_range: want [first, last], counted from 1, or -1 for the end")
			}
			if a.Offset, a.Limit = first, 100000; last > 0 {
				a.Limit = min(last-first+1, 100000)
			}
		}
		return one("read_file", a)
	case "create":
		return one("write_file", file.WriteArgs{Path: in.Path, Content: in.FileText, Mode: file.ModeCreate})
	case "str_replace":
		return one("edit_file", file.EditArgs{Path: in.Path, Edits: []file.Edit{{OldText: in.OldStr, NewText: in.NewStr}}})
	}
	if in.InsertLine == nil {
		return nil, tools.Errorf(tools.Invalid, "insert needs insert_line")
	}
	return one("edit_file", file.EditArgs{Path: in.Path,
		Edits: []file.Edit{{InsertLine: in.InsertLine, NewText: cmp.Or(in.InsertText, in.NewStr)}}})
}

func renderEditor(in editorArgs, all []tools.Result) tools.Result {
	switch in.Command {
	case "view":
		o := out[file.ReadResult](all[0])
		switch {
		case o.MIME != "":
			return tools.Result{Content: all[0].Content}
		case o.Lines == nil: // a directory
			return say("Here are the files and directories up to 2 levels deep in %s:\n%s", tools.Quote(in.Path), o.Text)
		}
		if len(in.ViewRange) == 2 && in.ViewRange[1] > 0 { // a range has no hint to continue
			o.NextOffset = 0
		}
		return say("Here's the result of running `cat -n` on %s:\n%s", tools.Quote(in.Path), numberedText(o))
	case "create":
		return say("File created successfully at: %s", tools.Quote(in.Path))
	}
	return say("The file %s has been edited.\n%s", tools.Quote(in.Path), out[file.EditResult](all[0]).Diff)
}
