// Package memory provides the tools that keep an agent's notes. A note is the file
// .memory/NAME.md of the agent's scope: it outlives the session, and the operator
// can read it. The tools use the file tools in the sandbox, so that the policy and
// the log cover notes as they cover other files.
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
)

const (
	dir      = ".memory"
	maxNotes = 1000
	maxText  = 64 << 10 // bytes per note
	maxPages = 10       // pages of list_dir, of 1000 entries each
)

var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9-]{1,64}$`) })

// Files calls the file tools in the sandbox: read_file, write_file, delete_file,
// list_dir and grep. args and out encode to and from the JSON of the tool's
// arguments and result. An error for the agent is a *tools.Error, with the code
// tools.NotFound when the file does not exist.
type Files interface {
	Call(ctx context.Context, env tools.Env, op string, args any, out any) error
}

// note is a note without its text.
type note struct {
	Name     string    `json:"name"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

// New returns the tools remember, recall, memory and forget.
func New(files Files) ([]tools.Tool, error) {
	m := memory{files}
	remember, err1 := tools.New("remember",
		"Save a note of at most 64 KiB for later sessions under a name. An existing note with that name is replaced.",
		tools.Hints{Title: "Remember", Writes: true, Changes: true, Acts: true, Destructive: true, Idempotent: true}, m.remember)
	recall, err2 := tools.New("recall",
		"Find at most 20 notes of this and earlier sessions by words, or one note by its name. The notes that match most words come first.",
		tools.Hints{Title: "Recall", Idempotent: true}, m.recall)
	list, err3 := tools.New("memory", "List the names of all notes of this and earlier sessions, at most 1000. To read them use recall.",
		tools.Hints{Title: "Memory", Idempotent: true}, m.list)
	forget, err4 := tools.New("forget", "Delete one note, by its name in memory.",
		tools.Hints{Title: "Forget", Writes: true, Changes: true, Acts: true, Destructive: true}, m.forget)
	return []tools.Tool{remember, recall, list, forget}, errors.Join(err1, err2, err3, err4)
}

type memory struct{ files Files }

// rememberArgs are the arguments of remember.
type rememberArgs struct {
	Name string `json:"name" jsonschema:"lower-case letters, digits and '-'" limit:"len=64"`
	Text string `json:"text" jsonschema:"Markdown, at most 64 KiB" limit:"len=65536"`
}

// Subject returns the note's file.
func (in rememberArgs) Subject() (rel, target string) { return file(in.Name), "" }

// remembered is the result of remember.
type remembered struct {
	Path    string `json:"path" jsonschema:"the note's file"`
	Created bool   `json:"created" jsonschema:"false if an existing note was replaced"`
}

func (m memory) remember(ctx context.Context, env tools.Env, in rememberArgs) (out remembered, err error) {
	if err := check(in.Name); err != nil {
		return out, err
	}
	if len(in.Text) > maxText {
		return out, tools.Errorf(tools.TooLarge, "the note has %d bytes: the limit is %d", len(in.Text), maxText).
			Suggest("split it into several notes, or write a file")
	}
	notes, err := m.notes(ctx, env)
	if err != nil {
		return out, err
	}
	known := slices.ContainsFunc(notes, func(n note) bool { return n.Name == in.Name })
	if !known && len(notes) >= maxNotes {
		return out, tools.Errorf(tools.TooLarge, "there are %d notes: the limit is %d", len(notes), maxNotes).
			Suggest("delete some with forget, or merge related notes")
	}
	args := map[string]any{"path": file(in.Name), "content": in.Text, "mode": "overwrite"}
	return remembered{file(in.Name), !known}, m.files.Call(ctx, env, "write_file", args, &struct{}{})
}

// listArgs are the arguments of memory, which has none.
type listArgs struct{}

// Subject returns the directory of the notes.
func (listArgs) Subject() (rel, target string) { return dir, "" }

// listing is the result of memory, sorted by name.
type listing struct {
	Notes []note `json:"notes" limit:"items=1000"`
}

// Content returns one line per note.
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

// forgetArgs are the arguments of forget.
type forgetArgs struct {
	Name string `json:"name" limit:"len=64"`
}

// Subject returns the note's file.
func (in forgetArgs) Subject() (rel, target string) { return file(in.Name), "" }

// forgotten is the result of forget.
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

// notes returns all notes in the order of list_dir, by name. Files without a valid note's
// name are skipped. It fails with tools.TooLarge beyond maxPages.
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

// file returns the path of a note, relative to the view.
func file(name string) string { return dir + "/" + name + ".md" }

// nameOf returns the name of the note at rel, or "" if rel is no note.
func nameOf(rel string) string {
	name, inside := strings.CutPrefix(rel, dir+"/")
	name, md := strings.CutSuffix(name, ".md")
	if !inside || !md || !validName().MatchString(name) {
		return ""
	}
	return name
}

func check(name string) error {
	if validName().MatchString(name) {
		return nil
	}
	shown, _ := json.Marshal(name)
	return tools.Errorf(tools.Invalid, "invalid name %.80s: want 1 to 64 lower-case letters, digits and '-'", shown)
}

func absent(err error) bool {
	e, ok := errors.AsType[*tools.Error](err)
	return ok && e.Code == tools.NotFound
}

func noNote(name string) error {
	return tools.Errorf(tools.NotFound, "no note %q", name).Suggest("memory lists all notes")
}
