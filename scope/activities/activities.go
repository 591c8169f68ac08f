// Package activities reads the calls that the operator declares: {base}/activities.d.
package activities

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Activity is a call that the operator has declared: {base}/activities.d/NAME.json,
// in the form of an MCP tool, and perhaps a program beside it, NAME.
type Activity struct {
	Name        string
	Title       string
	Description string
	Schema      json.RawMessage  // inputSchema
	ReadOnly    bool             // annotations.readOnlyHint
	Workspace   agents.Workspace // the program's access to the agent's view; "" is write
	Program     bool             // there is a program that does it
	Sum         string           // differs for another declaration and another program
}

// Set are those that have loaded, sorted by name. The zero value is none.
type Set struct {
	All  []Activity
	text map[string]*folder.Text // by name
}

// maxActivities bounds the declarations of a host.
const maxActivities = 1000

// Reload reads {base}/activities.d. Of a file that no longer loads it keeps the last
// good state. check judges a schema; tools are the names that are taken. It returns
// an error, a *FileError, for each file that is wrong.
func (a Set) Reload(base string, taken catalog.Tools, check func(Activity) error) (next Set, errs []error) {
	next.text = map[string]*folder.Text{}
	dir, err := folder.Open(base, agents.ActivitiesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return next, nil
	}
	if err != nil {
		return a, []error{&fields.FileError{File: agents.ActivitiesDir, Err: err}}
	}
	defer dir.Close()
	names, err := dir.Names("")
	if err == nil && len(names) > 2*maxActivities {
		err = fmt.Errorf("has more than %d files: remove some", 2*maxActivities)
	}
	if err != nil {
		return a, []error{&fields.FileError{File: agents.ActivitiesDir, Err: err}}
	}
	for _, file := range names {
		name, declared := strings.CutSuffix(file, ".json")
		if !declared {
			if !slices.Contains(names, file+".json") {
				errs = append(errs, fields.ErrorAt(path.Join(agents.ActivitiesDir, file), 0, "", fmt.Errorf("declares nothing: add %s.json, or remove it", file)))
			}
			continue
		}
		activity, text, err := readActivity(dir, name, a.text[name], slices.Contains(names, name), taken)
		if err == nil {
			err = atKey(text.Data, "inputSchema", check(activity))
		}
		if err != nil {
			errs = append(errs, fields.EachError(fields.ErrorAt(path.Join(agents.ActivitiesDir, file), 0, "", err))...)
			if activity, text = a.named(name), a.text[name]; text == nil {
				continue
			}
		}
		next.All, next.text[name] = append(next.All, activity), text
	}
	return next, errs
}

// Equal reports whether both declare the same.
func (a Set) Equal(other Set) bool {
	return slices.EqualFunc(a.All, other.All, func(x, y Activity) bool { return x.Name == y.Name && x.Sum == y.Sum })
}

// Tools returns the activities as definitions name them.
func (a Set) Tools() (all catalog.Tools) {
	for _, activity := range a.All {
		all = append(all, catalog.Tool{Name: activity.Name, Delegates: activity.delegates()})
	}
	return all
}

// delegates reports whether the schema lets a call name a member.
func (a Activity) delegates() bool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(a.Schema, &schema) // Reload has checked it
	return schema.Properties["_delegate"] != nil || schema.Properties["_module"] != nil
}

func (a Set) named(name string) Activity {
	for _, activity := range a.All {
		if activity.Name == name {
			return activity
		}
	}
	return Activity{}
}

// readActivity reads NAME.json, and looks at the program NAME.
func readActivity(d folder.Folder, name string, last *folder.Text, program bool, taken catalog.Tools) (a Activity, t *folder.Text, err error) {
	if t, err = d.Read(name+".json", last); err != nil {
		return a, nil, err
	}
	if a, err = parseActivity(name, t.Data); err != nil {
		return a, nil, err
	}
	if taken.Named(taken.Resolve(name)).Name != "" || name == catalog.MCP {
		return a, nil, fmt.Errorf("%s is the name of another tool: rename the file", name)
	}
	a.Program, a.Sum = program, t.Sum
	if program {
		f, at, err := d.Program(name)
		if err != nil {
			return a, nil, err
		}
		f.Close()
		a.Sum += at.State()
	}
	return a, t, nil
}

// Open opens the program for reading. It is an error if it is not the one that has
// loaded.
func (a Activity) Open(base string) (*os.File, error) {
	dir, err := folder.Open(base, agents.ActivitiesDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, at, err := dir.Program(a.Name)
	if err == nil && !strings.HasSuffix(a.Sum, at.State()) {
		f.Close()
		err = fmt.Errorf("the program %s has changed since it was loaded: scopefs reload", a.Name)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// parseActivity reads a declaration. Its keys are those of a tool of MCP.
func parseActivity(name string, text []byte) (a Activity, err error) {
	if !scoped.IsName(name) {
		return a, errors.New("is named like no tool: write a letter, then letters, digits, _ and -, then .json")
	}
	if len(text) > folder.MaxSize {
		return a, fmt.Errorf("is larger than %d bytes: shorten it", folder.MaxSize)
	}
	if _, _, bad := scoped.Canonical(text, 64); bad != nil {
		line := 0
		if s, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(any))); ok {
			line = lineAt(text, int(s.Offset))
		}
		return a, fields.AtLine(line, fmt.Errorf("%w: correct it", bad))
	}
	var in struct {
		Name, Title, Description string
		InputSchema              json.RawMessage
		Workspace                agents.Workspace
		Annotations              struct {
			Title                                                        string
			ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint bool
		}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return a, fields.AtLine(lineAt(text, int(dec.InputOffset())), fmt.Errorf("%w: it has name, title, description, inputSchema, annotations and workspace", err))
	}
	switch {
	case in.Name != "" && in.Name != name:
		return a, atKey(text, "name", fmt.Errorf("name: %q is not what the file is named after: write %s, or rename the file", in.Name, name))
	case strings.TrimSpace(in.Description) == "":
		return a, atKey(text, "description", errors.New("description is missing: say for models what the call does"))
	case len(in.InputSchema) == 0:
		return a, atKey(text, "inputSchema", errors.New(`inputSchema is missing: write {"type": "object", "properties": {...}}`))
	}
	if levels := []agents.Workspace{agents.WorkspaceNone, agents.WorkspaceRead, agents.WorkspaceWrite}; in.Workspace != "" && !slices.Contains(levels, in.Workspace) {
		return a, atKey(text, "workspace", fmt.Errorf("workspace: unknown %q: want one of %v", in.Workspace, levels))
	}
	return Activity{Name: name, Title: in.Title, Description: in.Description, Schema: in.InputSchema, ReadOnly: in.Annotations.ReadOnlyHint, Workspace: in.Workspace}, nil
}

// lineAt returns the line of an offset, from 1.
func lineAt(text []byte, offset int) int {
	return bytes.Count(text[:min(max(offset, 0), len(text))], []byte{'\n'}) + 1
}

// atKey adds the line of a key to err.
func atKey(text []byte, key string, err error) error {
	if err == nil {
		return nil
	}
	return fields.AtLine(lineAt(text, bytes.Index(text, []byte(`"`+key+`"`))), err)
}
