// Package imports converts other programs' agent files to scopefs definitions, and reports what it could not convert.
//
// It does no I/O. A definition never allows more than its source. Settings without an equivalent are dropped or read
// narrowly, and each is reported as a Loss. A list that becomes empty allows nothing.
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
	"github.com/scopefs/scopefs/scope/catalog"
)

// MaxSource limits a source, in bytes.
const MaxSource = 1 << 20

// Format is a format of agent files.
type Format string

// The formats that Convert reads.
const (
	Gemini    Format = "gemini"     // gemini-cli: .gemini/agents/*.md
	Claude    Format = "claude"     // Claude Code: .claude/agents/*.md
	ScopedMCP Format = "scoped-mcp" // a scoped-mcp manifest, YAML or JSON
	Scopes    Format = "scopes"     // YAML, JSON or TOML: agents whose empty lists mean unrestricted; never detected
)

// ParseFormat returns the format named s. It returns an error for an unknown name.
func ParseFormat(s string) (Format, error) {
	all := []Format{Gemini, Claude, ScopedMCP, Scopes}
	if f := Format(s); slices.Contains(all, f) {
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: want one of %v", s, all)
}

// Source is a file to import.
type Source struct {
	File   string // the path; its stem names an agent without a name
	Text   []byte
	Format Format        // "" to detect the format
	Name   scope.ID      // "" to use the name in the source
	Tools  catalog.Tools // the tools that a definition may name

	// Env returns a variable of the environment that the source's programs run in. Only
	// addresses without a secret are read. Nil: none.
	Env func(string) (string, bool)
}

// Result is one agent of a source.
type Result struct {
	Name     scope.ID
	Format   Format
	Because  string   // the sign that the format was detected by; "" if it was given
	Text     []byte   // the definition
	Stores   []byte   // what scopefs.yaml needs for it; nil: nothing
	Lost     []Loss   // in the order of the source
	Warnings []string // what the definition gives the source's author: one printable line each
}

// Loss is a setting of a source that its definition does not have.
type Loss struct {
	What    string `json:"what"`    // the key, and the word if the key has several
	Why     string `json:"why"`     // why it could not be converted
	Instead string `json:"instead"` // what the definition has instead
}

// String returns one printable line.
func (l Loss) String() string { return printable.Text(l.What + ": " + l.Why + "; " + l.Instead) }

// Convert returns the agents of a source, at least one. Its errors name a remedy, but not the file.
func Convert(src Source) ([]Result, error) {
	if len(src.Text) > MaxSource {
		return nil, fmt.Errorf("is larger than %d bytes: shorten it", MaxSource)
	}
	if !utf8.Valid(src.Text) {
		return nil, errors.New("is not UTF-8: save it as UTF-8")
	}
	text := src.Text
	if filepath.Ext(src.File) == ".toml" {
		var err error
		if text, err = yamlOfTOML(text); err != nil {
			return nil, err
		}
	}
	doc, err := readDocument(string(text))
	if err != nil {
		return nil, err
	}
	doc.ours, doc.env = src.Tools, src.Env
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
		return nil, fmt.Errorf("has %d agents: remove --name", len(drafts))
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
		stores, err := d.storesText()
		if err != nil {
			return nil, err
		}
		results = append(results, Result{d.id, format, because, text, stores, d.lost, d.warnings()})
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
	switch {
	case convert == nil:
		return nil, fmt.Errorf("unknown format %q", format)
	case format == ScopedMCP && doc.markdown:
		return nil, errors.New("has a body after its keys: a manifest is YAML or JSON alone")
	case format != ScopedMCP && !doc.markdown:
		return nil, errors.New("does not start with keys between two --- lines: an agent file does")
	}
	d, err := convert(doc)
	if err != nil {
		return nil, err
	}
	return []*draft{d}, nil
}

// identify sets the draft's id: the requested one, or one from the draft's name or the file's name. It returns an
// error if toID does.
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
	case string(id) != d.name && d.kept["display_name"] == nil:
		d.keep("display_name", text(d.name)) // other agents name it so
		d.lose("name", fmt.Sprintf("%q is not a valid id", d.name), "name: "+string(id)+", with the display_name")
	case string(id) != d.name:
		d.lose("name", fmt.Sprintf("%q is not a valid id", d.name), "name: "+string(id))
	}
	return nil
}

// toID converts a name to an id: lower case, with '-' for a blank, '_' or '.'. It returns an error if the result is
// not a valid id.
func toID(name string) (scope.ID, error) {
	id, err := scope.ParseID(strings.NewReplacer("_", "-", " ", "-", ".", "-").Replace(strings.ToLower(name)))
	if err != nil {
		return "", fmt.Errorf("the name %q is not a valid id: give one with --name ID", name)
	}
	return id, nil
}
