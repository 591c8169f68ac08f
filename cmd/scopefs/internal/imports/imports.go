// Package imports turns other programs' descriptions of agents into scopefs
// definitions, and says what of them could not be kept.
//
// It is pure: bytes in, bytes out. A definition never allows more than its
// source does. What cannot be said here is dropped, or read narrowly, and is a
// Loss either way; what comes out empty means nothing, never everything.
package imports

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// MaxSource is the most bytes a source may have.
const MaxSource = 1 << 20

// Format is a kind of file that describes agents.
type Format string

// The formats.
const (
	Gemini    Format = "gemini"     // gemini-cli: .gemini/agents/*.md
	Claude    Format = "claude"     // Claude Code: .claude/agents/*.md
	ScopedMCP Format = "scoped-mcp" // a manifest of scoped-mcp, YAML or JSON
	Scopes    Format = "scopes"     // agents in whose lists empty means unrestricted; never detected
)

// ParseFormat returns the format called s.
func ParseFormat(s string) (Format, error) {
	all := []Format{Gemini, Claude, ScopedMCP, Scopes}
	if f := Format(s); slices.Contains(all, f) {
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: want one of %v", s, all)
}

// Source is a file to import.
type Source struct {
	File   string // its path; the stem names an agent that has no name
	Text   []byte
	Format Format       // "" is to be found out
	Name   scope.ID     // "" is the one that the source gives
	Tools  agents.Tools // that a definition may name
}

// Result is one agent of a source.
type Result struct {
	Name     scope.ID
	Format   Format
	Because  string   // what the format was told by, if it was found out
	Text     []byte   // of the definition
	Lost     []Loss   // in the order they were met
	Warnings []string // what its source's author gets: a line each, whatever the source holds
}

// Loss is something of a source that its definition does not say.
type Loss struct {
	What    string `json:"what"`    // the key, and the word if it is one of several
	Why     string `json:"why"`     // why it could not be kept
	Instead string `json:"instead"` // what the definition has instead
}

// String returns one line, whatever the source holds.
func (l Loss) String() string { return printable.Text(l.What + ": " + l.Why + "; " + l.Instead) }

// Convert returns the agents of a source, at least one. Its errors say what to
// do, and do not name the file.
func Convert(src Source) ([]Result, error) {
	if len(src.Text) > MaxSource {
		return nil, fmt.Errorf("is larger than %d bytes: shorten it", MaxSource)
	}
	if !utf8.Valid(src.Text) {
		return nil, errors.New("is not UTF-8: save it as UTF-8")
	}
	doc, err := readDocument(string(src.Text))
	if err != nil {
		return nil, err
	}
	doc.ours = src.Tools
	format, because := src.Format, ""
	if format == "" {
		if format, because, err = detect(src.File, doc); err != nil {
			return nil, err
		}
	}
	drafts, err := draftsOf(format, doc)
	if err != nil {
		return nil, err
	}
	if src.Name != "" && len(drafts) > 1 {
		return nil, fmt.Errorf("has %d agents: one name does not do, take --name away", len(drafts))
	}
	var results []Result
	seen := map[scope.ID]bool{}
	for _, d := range drafts {
		d.lost = append(slices.Clone(doc.lost), d.lost...)
		if err := d.identify(src); err != nil {
			return nil, err
		}
		if seen[d.id] {
			return nil, fmt.Errorf("has two agents that would be called %s: rename one", d.id)
		}
		seen[d.id] = true
		text, err := d.render()
		if err != nil {
			return nil, err
		}
		results = append(results, Result{d.id, format, because, text, d.lost, d.warnings()})
	}
	return results, nil
}

func draftsOf(format Format, doc *document) ([]*draft, error) {
	if format == Scopes {
		return scopesDrafts(doc)
	}
	convert := map[Format]func(*document) (*draft, error){
		Gemini: geminiDraft, Claude: claudeDraft, ScopedMCP: manifestDraft,
	}[format]
	if convert == nil {
		return nil, fmt.Errorf("unknown format %q", format)
	}
	if (format == ScopedMCP) == doc.markdown {
		return nil, map[bool]error{
			true:  errors.New("has a body after its keys: a manifest is YAML or JSON alone"),
			false: errors.New("does not start with keys between two --- lines: an agent file does"),
		}[doc.markdown]
	}
	d, err := convert(doc)
	if err != nil {
		return nil, err
	}
	return []*draft{d}, nil
}

// identify gives the draft its id: the one asked for, or what its name or else
// the file's becomes when nothing has to be guessed.
func (d *draft) identify(src Source) error {
	if d.id = src.Name; d.id != "" {
		if string(d.id) != d.name {
			d.lose("name", fmt.Sprintf("%q is not what was asked for", d.name), "name: "+string(d.id))
		}
		return nil
	}
	name := d.name
	if name == "" {
		base := filepath.Base(src.File)
		name = strings.TrimSuffix(base, filepath.Ext(base))
	}
	id, err := toID(name)
	if err != nil {
		return err
	}
	switch d.id = id; {
	case d.name == "":
		d.lose("name", "is missing", "name: "+string(id)+", as the file is called")
	case string(id) != d.name:
		d.lose("name", fmt.Sprintf("%q is no id", d.name), "name: "+string(id))
	}
	return nil
}

// toID returns what name is as an id: in lower case, '-' for a blank, '_' or '.'.
// Whatever would take more than that is refused.
func toID(name string) (scope.ID, error) {
	id, err := scope.ParseID(strings.NewReplacer("_", "-", " ", "-", ".", "-").Replace(strings.ToLower(name)))
	if err != nil {
		return "", fmt.Errorf("the name %q makes no id: give one with --name ID", name)
	}
	return id, nil
}
