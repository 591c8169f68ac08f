package message

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/printable"
)

// ReadArgs are the arguments of read_file.
type ReadArgs struct {
	Path   string `json:"path" jsonschema:"relative to the workspace"`
	Offset int    `json:"offset,omitempty" limit:"min=1,max=1000000000" jsonschema:"first line to return, counted from 1"`
	Limit  int    `json:"limit,omitempty" limit:"min=1,max=100000" jsonschema:"how many lines to return; default 2000"`
	Tail   int    `json:"tail,omitempty" limit:"min=1,max=100000" jsonschema:"return the last so many lines, without offset and limit"`
	Media  bool   `json:"media,omitempty" jsonschema:"return other files, too, such as audio: up to 5 MiB"`
	List   bool   `json:"list,omitempty" jsonschema:"list a directory, two levels deep"`
}

// LineRange holds the line numbers of a text. Total is absent if the file was not read to its end.
type LineRange struct {
	Start int  `json:"start"`
	End   int  `json:"end"`
	Total *int `json:"total,omitempty"`
}

// ReadResult is the result of read_file.
type ReadResult struct {
	Path       string     `json:"path" limit:"len=8192"`
	Text       string     `json:"text,omitempty" limit:"len=300000"`
	MIME       string     `json:"mime,omitempty" jsonschema:"of an image, or of media"`
	Lines      *LineRange `json:"lines,omitempty"`
	Size       int64      `json:"size" jsonschema:"of the file, in bytes"`
	Hash       string     `json:"hash,omitempty" jsonschema:"of the whole file; for if_match"`
	Truncated  bool       `json:"truncated,omitempty" jsonschema:"there is more, or a long line was cut"`
	NextOffset int        `json:"next_offset,omitempty" jsonschema:"offset of the next read"`
	Replaced   int        `json:"replaced,omitempty" jsonschema:"bytes of text, NUL or not UTF-8, for which U+FFFD stands"`

	Data []byte `json:"-"` // of the image
}

// WriteMode is what write_file does with a file that is there.
type WriteMode string

// ModeCreate creates a new file, and fails if the name exists.
const (
	ModeCreate    WriteMode = "create"
	ModeOverwrite WriteMode = "overwrite"
	ModeAppend    WriteMode = "append"
)

// WriteArgs are the arguments of write_file.
type WriteArgs struct {
	Path    string    `json:"path" jsonschema:"relative to the workspace"`
	Content string    `json:"content" limit:"len=4194304" jsonschema:"the whole new content, or what to append"`
	Mode    WriteMode `json:"mode,omitempty" limit:"enum=create|overwrite|append,default=\"overwrite\"" jsonschema:"create fails when the file exists"`
	IfMatch string    `json:"if_match,omitempty" limit:"len=100" jsonschema:"change only a file with this hash, which a read gave"`
}

// WriteResult is the result of write_file.
type WriteResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Bytes   int    `json:"bytes" jsonschema:"written"`
	Created bool   `json:"created"`
	Hash    string `json:"hash,omitempty" jsonschema:"of the whole file; for if_match"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"the file was written over, not replaced at once: it has other names, another owner, or its directory takes no new files"`
}

// EditArgs are the arguments of edit_file.
type EditArgs struct {
	Path    string `json:"path" jsonschema:"relative to the workspace"`
	Edits   []Edit `json:"edits" limit:"items=200" jsonschema:"done in this order"`
	DryRun  bool   `json:"dry_run,omitempty" jsonschema:"change nothing, only show the diff"`
	IfMatch string `json:"if_match,omitempty" limit:"len=100" jsonschema:"change only a file with this hash, which a read gave"`
}

// Edit replaces a text, or inserts one.
type Edit struct {
	OldText    string `json:"old_text,omitempty" limit:"len=1048576" jsonschema:"exactly what is there now, with indentation; take enough lines to be there once"`
	NewText    string `json:"new_text" limit:"len=1048576" jsonschema:"what replaces it"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"replace every occurrence"`
	InsertLine *int   `json:"insert_line,omitempty" limit:"min=0,max=10000000" jsonschema:"in place of old_text: insert new_text as lines after this one; 0: at the beginning"`
}

// EditResult is the result of edit_file.
type EditResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Edits   int    `json:"edits" jsonschema:"replacements and insertions made"`
	Diff    string `json:"diff" limit:"len=100000" jsonschema:"unified, of the whole change"`
	Hash    string `json:"hash" jsonschema:"of the new content; for if_match"`
	DryRun  bool   `json:"dry_run,omitempty" jsonschema:"nothing was changed"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"the file was written over, not replaced at once"`
}

// ListArgs are the arguments of list_dir.
type ListArgs struct {
	Path   string `json:"path,omitempty" jsonschema:"relative to the workspace; default: its root"`
	Depth  int    `json:"depth,omitempty" limit:"min=1,max=5,default=1" jsonschema:"how many levels to list"`
	Cursor string `json:"cursor,omitempty" limit:"len=16384" jsonschema:"next_cursor of the page before"`
	Limit  int    `json:"limit,omitempty" limit:"min=1,max=1000,default=1000" jsonschema:"entries of a page"`

	NamesOnly bool `json:"names_only,omitempty" jsonschema:"without sizes and times, which is faster"`
}

// Entry is a name in the result of glob.
type Entry struct {
	Path     string `json:"path" limit:"len=8192" jsonschema:"relative to the workspace"`
	Type     string `json:"type" limit:"enum=file|directory|link|fifo|socket|device"`
	Size     int64  `json:"size" jsonschema:"in bytes"`
	Modified string `json:"modified"`
}

// Listed is a name in the result of list_dir.
type Listed struct {
	Path     string `json:"path" limit:"len=8192" jsonschema:"relative to the workspace"`
	Type     string `json:"type" limit:"enum=file|directory|link|fifo|socket|device"`
	Size     *int64 `json:"size,omitempty" jsonschema:"in bytes; not with names_only"`
	Modified string `json:"modified,omitempty" jsonschema:"not with names_only"`
}

// Bytes returns the size, 0 if the entry has none.
func (e Listed) Bytes() int64 {
	if e.Size == nil {
		return 0
	}
	return *e.Size
}

// ListResult is the result of list_dir.
type ListResult struct {
	Path       string   `json:"path" limit:"len=8192"`
	Entries    []Listed `json:"entries" limit:"items=1000" jsonschema:"sorted by name, a directory before what is in it"`
	NextCursor string   `json:"next_cursor,omitempty" limit:"len=16384" jsonschema:"there is more: pass it as cursor"`
}

// StatArgs are the arguments of stat.
type StatArgs struct {
	Path   string `json:"path" jsonschema:"relative to the workspace"`
	Hash   bool   `json:"hash,omitempty" jsonschema:"also hash a file of at most 8 MiB"`
	Follow bool   `json:"follow,omitempty" jsonschema:"tell of what a link leads to"`
}

// StatResult is the result of stat.
type StatResult struct {
	Path     string `json:"path" limit:"len=8192"`
	Type     string `json:"type" limit:"enum=file|directory|link|fifo|socket|device"`
	Size     int64  `json:"size" jsonschema:"in bytes"`
	Mode     string `json:"mode" jsonschema:"permissions, octal"`
	Modified string `json:"modified"`
	Target   string `json:"target,omitempty" limit:"len=8192" jsonschema:"what a link that leads nowhere outside says"`
	Hash     string `json:"hash,omitempty" jsonschema:"of the content; for if_match"`
}

// GlobArgs are the arguments of glob.
type GlobArgs struct {
	Pattern string `json:"pattern" limit:"len=1024" jsonschema:"such as **/*.go or src/{a,b}/*; ** is any number of directories"`
	Path    string `json:"path,omitempty" jsonschema:"where to search, relative to the workspace; default: its root"`
	Limit   int    `json:"limit,omitempty" limit:"min=1,max=5000,default=200" jsonschema:"most results"`
}

// GlobResult is the result of glob.
type GlobResult struct {
	Matches   []Entry `json:"matches" limit:"items=5000" jsonschema:"the last changed first"`
	Truncated bool    `json:"truncated,omitempty" jsonschema:"there are more"`
	Hint      string  `json:"hint,omitempty" jsonschema:"why there is no match"`
}

// GrepOutput is what grep returns.
type GrepOutput string

// The outputs of grep: lines, names of files, or counts of matching lines.
const (
	OutputContent GrepOutput = "content"
	OutputFiles   GrepOutput = "files"
	OutputCount   GrepOutput = "count"
)

// GrepArgs are the arguments of grep.
type GrepArgs struct {
	Pattern    string     `json:"pattern" limit:"len=1024" jsonschema:"RE2: no back references, no look-around"`
	Path       string     `json:"path,omitempty" jsonschema:"a file or directory, relative to the workspace; default: its root"`
	Glob       string     `json:"glob,omitempty" limit:"len=1024" jsonschema:"only files that match, such as *.go (a name) or src/**/*.ts (a path)"`
	IgnoreCase bool       `json:"ignore_case,omitempty"`
	Fixed      bool       `json:"fixed,omitempty" jsonschema:"the pattern is a plain text"`
	Multiline  bool       `json:"multiline,omitempty" jsonschema:"a match may span lines; . matches a line's end"`
	Context    int        `json:"context,omitempty" limit:"min=0,max=20" jsonschema:"lines around each match"`
	Before     int        `json:"before,omitempty" limit:"min=0,max=20" jsonschema:"lines before, in place of context"`
	After      int        `json:"after,omitempty" limit:"min=0,max=20" jsonschema:"lines after, in place of context"`
	Output     GrepOutput `json:"output,omitempty" limit:"enum=content|files|count,default=\"content\"" jsonschema:"matching lines, files that have any, or how many each has"`
	Limit      int        `json:"limit,omitempty" limit:"min=1,max=5000,default=200" jsonschema:"most matching lines (content) or files"`
}

// Matched holds the matches in a file. It has lines for the output content only.
type Matched struct {
	Path  string     `json:"path" limit:"len=8192"`
	Count int        `json:"count" jsonschema:"lines that match"`
	Lines []GrepLine `json:"lines,omitempty" limit:"items=250000"`
}

// GrepLine is a line of a file.
type GrepLine struct {
	Line    int    `json:"line" jsonschema:"counted from 1"`
	Text    string `json:"text" limit:"len=1000"`
	Context bool   `json:"context,omitempty" jsonschema:"it does not match, but is near one that does"`

	Replaced int `json:"-"` // bytes of it: see GrepResult
}

// GrepResult is the result of grep.
type GrepResult struct {
	Files     []Matched `json:"files" limit:"items=5000"`
	Truncated bool      `json:"truncated,omitempty" jsonschema:"there are more"`
	Replaced  int       `json:"replaced,omitempty" jsonschema:"bytes of lines, NUL or not UTF-8, for which U+FFFD stands"`

	Output GrepOutput `json:"output" limit:"enum=content|files|count"`
}

// MakeDirArgs are the arguments of make_dir.
type MakeDirArgs struct {
	Path string `json:"path" jsonschema:"relative to the workspace"`
}

// MakeDirResult is the result of make_dir.
type MakeDirResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Created bool   `json:"created" jsonschema:"false: it was there"`
}

// MoveArgs are the arguments of move.
type MoveArgs struct {
	From      string `json:"from" jsonschema:"relative to the workspace"`
	To        string `json:"to" jsonschema:"its new path, not the directory to put it in"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"replace the file that has the new path"`
}

// MoveResult is the result of move.
type MoveResult struct {
	From string `json:"from" limit:"len=8192"`
	To   string `json:"to" limit:"len=8192"`
}

// DeleteFileArgs are the arguments of delete_file.
type DeleteFileArgs struct {
	Path string `json:"path" jsonschema:"relative to the workspace"`
}

// DeleteArgs are the arguments of delete.
type DeleteArgs struct {
	Path      string `json:"path" jsonschema:"relative to the workspace"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"with all that is in it"`
}

// DeleteResult is the result of delete_file and delete.
type DeleteResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Deleted int    `json:"deleted" jsonschema:"names, of files and directories"`
}

// CopyArgs are the arguments of copy.
type CopyArgs struct {
	From      string `json:"from" jsonschema:"relative to the workspace"`
	To        string `json:"to" jsonschema:"the path of the copy, not the directory to put it in"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"copy a directory, too"`
	Overwrite bool   `json:"overwrite,omitempty" jsonschema:"replace files that are there; merge directories"`
}

// CopyResult is the result of copy.
type CopyResult struct {
	From    string `json:"from" limit:"len=8192"`
	To      string `json:"to" limit:"len=8192"`
	Copied  int    `json:"copied" jsonschema:"files, links and directories"`
	Bytes   int64  `json:"bytes"`
	Skipped int    `json:"skipped,omitempty" jsonschema:"FIFOs, sockets and devices, which are not copied"`
}

// OpHash is an operation that is no tool.
const OpHash = "hash"

// HashArgs are the arguments of OpHash.
type HashArgs struct {
	Path string `json:"path"`
	Tree bool   `json:"tree,omitempty"` // the tool writes: hash a directory, too
	Name bool   `json:"name,omitempty"` // of a link, the object is the link
}

// HashResult is the result of OpHash.
type HashResult struct {
	Hash string `json:"hash"`
	Path string `json:"path"`
	ID   string `json:"id"`
}

// OpPreview is an operation that is no tool.
const OpPreview = "preview"

// PreviewArgs are the arguments of a call of write_file or edit_file.
type PreviewArgs struct {
	Write *WriteArgs `json:"write,omitempty"`
	Edit  *EditArgs  `json:"edit,omitempty"`
}

// PreviewResult is the result of OpPreview.
type PreviewResult struct {
	Diff    string `json:"diff,omitempty"`
	Cut     int    `json:"cut,omitempty"`
	Note    string `json:"note,omitempty"`
	Content string `json:"content,omitempty"` // hash of the present content
}

// OpSweep removes the temporary file of a killed call.
// OpSweep is an operation that is no tool.
const OpSweep = "sweep"

// SweepArgs are the arguments of OpSweep.
type SweepArgs struct {
	Path  string `json:"path"`
	Token string `json:"token"`
}

// OpTake is an operation that is no tool.
const OpTake = "take"

// TakeArgs are the arguments of OpTake.
type TakeArgs struct {
	From  string     `json:"from"`
	Steps []TakeStep `json:"steps"`
}

// TakeStep is one step.
type TakeStep struct {
	Do   string `json:"do"`
	Path []byte `json:"path,omitempty"` // JSON has no strings that are not UTF-8
	To   []byte `json:"to,omitempty"`
}

// What a step does.
const (
	TakeRemove = "remove"
	TakeMove   = "move"
	TakeMake   = "make"
	TakeMode   = "mode" // the mode of a directory
)

// TakeResult is the result of OpTake.
type TakeResult struct{}

// Text returns a line for each entry: a directory with a slash, a file with its size if known.
func (r ListResult) Text() string {
	var b strings.Builder
	for _, e := range r.Entries {
		switch {
		case e.Type == "directory":
			fmt.Fprintf(&b, "%s/\n", printable.Quote(e.Path))
		case e.Type == "file" && e.Size == nil:
			fmt.Fprintf(&b, "%s\n", printable.Quote(e.Path))
		case e.Type == "file":
			fmt.Fprintf(&b, "%s\t%d\n", printable.Quote(e.Path), *e.Size)
		default:
			fmt.Fprintf(&b, "%s\t(%s)\n", printable.Quote(e.Path), e.Type)
		}
	}
	if len(r.Entries) == 0 {
		b.WriteString("(empty)\n")
	}
	b.WriteString(OddNames(r.Entries, func(e Listed) string { return e.Path }))
	if r.NextCursor != "" {
		fmt.Fprintf(&b, "[there is more; go on with cursor %q]\n", r.NextCursor)
	}
	return b.String()
}

// Text returns the matches as ripgrep prints them.
func (r GrepResult) Text() string {
	var b strings.Builder
	for _, f := range r.Files {
		switch r.Output {
		case OutputFiles:
			fmt.Fprintln(&b, printable.Quote(f.Path))
		case OutputCount:
			fmt.Fprintf(&b, "%s:%d\n", printable.Quote(f.Path), f.Count)
		default:
			f.Print(&b, true)
		}
	}
	switch {
	case len(r.Files) == 0:
		b.WriteString("no matches\n")
	case r.Truncated:
		b.WriteString("[there are more; narrow the search or raise the limit]\n")
	}
	b.WriteString(OddNames(r.Files, func(m Matched) string { return m.Path }))
	b.WriteString(printable.Replaced(r.Replaced))
	return b.String()
}

// OddNames returns a line if a path of entries has bytes that are not UTF-8, for which U+FFFD stands; else "".
func OddNames[E any](entries []E, path func(E) string) string {
	if !slices.ContainsFunc(entries, func(e E) bool { return strings.ContainsRune(path(e), utf8.RuneError) }) {
		return ""
	}
	return "[\uFFFD in a name stands for bytes that are not UTF-8: programs can name the file, as by *, these tools cannot]\n"
}

// Print writes the lines as ripgrep prints them, with or without line numbers.
func (m *Matched) Print(b *strings.Builder, numbers bool) {
	name := printable.Quote(m.Path)
	for i, l := range m.Lines {
		if i > 0 && l.Line > m.Lines[i-1].Line+1 && (l.Context || m.Lines[i-1].Context) {
			b.WriteString("--\n")
		}
		sep := ":"
		if l.Context {
			sep = "-"
		}
		b.WriteString(name + sep)
		if numbers {
			fmt.Fprintf(b, "%d%s", l.Line, sep)
		}
		b.WriteString(l.Text + "\n")
	}
}
