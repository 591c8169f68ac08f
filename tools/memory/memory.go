// Package memory keeps an agent's notes to itself: files .memory/NAME.md of its
// own scope, which outlive its sessions and which its operator can read. They are
// written and read in the sandbox, beneath the same policy and log as any file.
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/scopefs/scopefs/tools"
)

const (
	dir      = ".memory"
	maxNotes = 1000
	maxText  = 64 << 10 // bytes of a note
	maxPages = 10       // of the directory, a thousand entries each
)

var validName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Files are the file tools in the sandbox: read_file, write_file, delete_file,
// list_dir and grep, with their arguments and results as JSON has them. An error
// for the agent is a *tools.Error; one of what does not exist is tools.NotFound.
type Files interface {
	Call(ctx context.Context, env tools.Env, op string, args any, out any) error
}

// note is one of them, without its text.
type note struct {
	Name     string    `json:"name"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

// New returns the tools remember, recall, memory and forget.
func New(files Files) ([]tools.Tool, error) {
	m := memory{files}
	remember, err1 := tools.New("remember",
		"Keep a note for later sessions, under a name. A note of that name is replaced.",
		tools.Hints{Title: "Remember", Writes: true, Acts: true, Destructive: true, Idempotent: true}, m.remember)
	recall, err2 := tools.New("recall",
		"Find notes of this and earlier sessions by words, or one by its name. The notes with most of the words come first.",
		tools.Hints{Title: "Recall", Idempotent: true}, m.recall)
	list, err3 := tools.New("memory", "List all notes of this and earlier sessions.",
		tools.Hints{Title: "Memory", Idempotent: true}, m.list)
	forget, err4 := tools.New("forget", "Delete a note.",
		tools.Hints{Title: "Forget", Writes: true, Acts: true, Destructive: true}, m.forget)
	return []tools.Tool{remember, recall, list, forget}, errors.Join(err1, err2, err3, err4)
}

type memory struct{ files Files }

// rememberArgs is what remember is asked.
type rememberArgs struct {
	Name string `json:"name" jsonschema:"lower-case letters, digits and '-'" limit:"len=64"`
	Text string `json:"text" jsonschema:"Markdown, at most 64 KiB" limit:"len=65536"`
}

// Subject is the note's file.
func (in rememberArgs) Subject() (rel, target string) { return file(in.Name), "" }

// remembered says where the note is.
type remembered struct {
	Path    string `json:"path" jsonschema:"the note, which is a file like others"`
	Created bool   `json:"created" jsonschema:"false: a note was replaced"`
}

func (m memory) remember(ctx context.Context, env tools.Env, in rememberArgs) (out remembered, err error) {
	if err := check(in.Name); err != nil {
		return out, err
	}
	if len(in.Text) > maxText {
		e := tools.Errorf(tools.TooLarge, "the note has %d bytes, of at most %d", len(in.Text), maxText)
		e.Hint = "make several notes of it, or a file"
		return out, e
	}
	notes, err := m.notes(ctx, env)
	if err != nil {
		return out, err
	}
	known := false
	for _, n := range notes {
		known = known || n.Name == in.Name
	}
	if !known && len(notes) >= maxNotes {
		e := tools.Errorf(tools.TooLarge, "there are %d notes, of at most %d", len(notes), maxNotes)
		e.Hint = "forget some, or put what belongs together into one"
		return out, e
	}
	args := map[string]any{"path": file(in.Name), "content": in.Text, "mode": "overwrite"}
	return remembered{file(in.Name), !known}, m.files.Call(ctx, env, "write_file", args, &struct{}{})
}

// listArgs is what memory is asked: nothing.
type listArgs struct{}

// Subject is the directory.
func (listArgs) Subject() (rel, target string) { return dir, "" }

// listing is the notes in the order of their names.
type listing struct {
	Notes []note `json:"notes" limit:"items=1000"`
}

// Content is a line a note.
func (o listing) Content() []tools.Content {
	if len(o.Notes) == 0 {
		return []tools.Content{{Text: "There are no notes."}}
	}
	var b strings.Builder
	for _, n := range o.Notes {
		fmt.Fprintf(&b, "%s (%d bytes, %s)\n", n.Name, n.Bytes, n.Modified.Format(time.DateOnly))
	}
	return []tools.Content{{Text: b.String()}}
}

func (m memory) list(ctx context.Context, env tools.Env, _ listArgs) (listing, error) {
	notes, err := m.notes(ctx, env)
	return listing{notes}, err
}

// forgetArgs is what forget is asked.
type forgetArgs struct {
	Name string `json:"name" limit:"len=64"`
}

// Subject is the note's file.
func (in forgetArgs) Subject() (rel, target string) { return file(in.Name), "" }

// forgotten says which note is gone.
type forgotten struct {
	Forgotten string `json:"forgotten"`
}

func (m memory) forget(ctx context.Context, env tools.Env, in forgetArgs) (out forgotten, err error) {
	if err := check(in.Name); err != nil {
		return out, err
	}
	err = m.files.Call(ctx, env, "delete_file", map[string]any{"path": file(in.Name)}, &struct{}{})
	if absent(err) {
		return out, noNote(in.Name)
	}
	return forgotten{in.Name}, err
}

// notes returns all notes in the order of their names. What else is in the
// directory is none.
func (m memory) notes(ctx context.Context, env tools.Env) ([]note, error) {
	notes := []note{}
	cursor := ""
	for range maxPages {
		args := map[string]any{"path": dir, "limit": 1000}
		if cursor != "" {
			args["cursor"] = cursor
		}
		var page struct {
			Entries []struct {
				Path, Type string
				Size       int64
				Modified   time.Time
			}
			NextCursor string `json:"next_cursor"`
		}
		err := m.files.Call(ctx, env, "list_dir", args, &page)
		if absent(err) {
			return notes, nil
		} else if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if name := nameOf(e.Path); e.Type == "file" && name != "" {
				notes = append(notes, note{name, e.Size, e.Modified})
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return notes, nil
		}
	}
	return nil, tools.Errorf(tools.TooLarge, "%s holds too many other files", dir)
}

// file is where a note is, relative to the view.
func file(name string) string { return dir + "/" + name + ".md" }

// nameOf returns the name of the note that a file is, or "".
func nameOf(rel string) string {
	name, inside := strings.CutPrefix(rel, dir+"/")
	name, md := strings.CutSuffix(name, ".md")
	if !inside || !md || !validName.MatchString(name) {
		return ""
	}
	return name
}

func check(name string) error {
	if validName.MatchString(name) {
		return nil
	}
	shown, _ := json.Marshal(name)
	return tools.Errorf(tools.Invalid, "the name %.80s: want 1 to 64 lower-case letters, digits and '-'", shown)
}

func absent(err error) bool {
	e, ok := errors.AsType[*tools.Error](err)
	return ok && e.Code == tools.NotFound
}

func noNote(name string) error {
	e := tools.Errorf(tools.NotFound, "no note %q", name)
	e.Hint = "memory lists all notes"
	return e
}
