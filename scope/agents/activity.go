package agents

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

	"golang.org/x/sys/unix"

	scoped "github.com/scopefs/scopefs/scope/context"
)

// Activity is a call that the operator has declared: {base}/activities.d/NAME.json,
// in the form of an MCP tool, and perhaps a program beside it, NAME.
type Activity struct {
	Name        string
	Title       string
	Description string
	Schema      json.RawMessage // inputSchema
	ReadOnly    bool            // annotations.readOnlyHint
	Workspace   Workspace       // the program's access to the agent's view; "" is write
	Program     bool            // there is a program that does it
	Sum         string          // differs for another declaration and another program
}

// Activities are those that have loaded, sorted by name. The zero value is none.
type Activities struct {
	All  []Activity
	text map[string]*text // by name
}

// maxActivities bounds the declarations of a host.
const maxActivities = 1000

// Reload reads {base}/activities.d. Of a file that no longer loads it keeps the last
// good state. check judges a schema; tools are the names that are taken. It returns
// an error, a *DefinitionError, for each file that is wrong.
func (a Activities) Reload(base string, taken Tools, check func(Activity) error) (next Activities, errs []error) {
	next.text = map[string]*text{}
	dir, err := openFolder(base, activitiesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return next, nil
	}
	if err != nil {
		return a, []error{&DefinitionError{File: activitiesDir, Err: err}}
	}
	defer dir.Close()
	names, err := dir.names("")
	if err == nil && len(names) > 2*maxActivities {
		err = fmt.Errorf("has more than %d files: remove some", 2*maxActivities)
	}
	if err != nil {
		return a, []error{&DefinitionError{File: activitiesDir, Err: err}}
	}
	for _, file := range names {
		name, declared := strings.CutSuffix(file, ".json")
		if !declared {
			if !slices.Contains(names, file+".json") {
				errs = append(errs, wrongAt(path.Join(activitiesDir, file), 0, "", fmt.Errorf("declares nothing: add %s.json, or remove it", file)))
			}
			continue
		}
		activity, text, err := dir.activity(name, a.text[name], slices.Contains(names, name), taken)
		if err == nil {
			err = atKey(text.data, "inputSchema", check(activity))
		}
		if err != nil {
			errs = append(errs, eachError(wrongAt(path.Join(activitiesDir, file), 0, "", err))...)
			if activity, text = a.named(name), a.text[name]; text == nil {
				continue
			}
		}
		next.All, next.text[name] = append(next.All, activity), text
	}
	return next, errs
}

// Equal reports whether both declare the same.
func (a Activities) Equal(other Activities) bool {
	return slices.EqualFunc(a.All, other.All, func(x, y Activity) bool { return x.Name == y.Name && x.Sum == y.Sum })
}

// Tools returns the activities as definitions name them.
func (a Activities) Tools() (all Tools) {
	for _, activity := range a.All {
		all = append(all, Tool{Name: activity.Name, Delegates: activity.delegates()})
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

func (a Activities) named(name string) Activity {
	for _, activity := range a.All {
		if activity.Name == name {
			return activity
		}
	}
	return Activity{}
}

// activity reads NAME.json, and looks at the program NAME.
func (d folder) activity(name string, last *text, program bool, taken Tools) (a Activity, t *text, err error) {
	if t, err = d.read(name+".json", last); err != nil {
		return a, nil, err
	}
	if a, err = parseActivity(name, t.data); err != nil {
		return a, nil, err
	}
	if taken.named(taken.resolve(name)).Name != "" || name == mcpName {
		return a, nil, fmt.Errorf("%s is the name of another tool: rename the file", name)
	}
	a.Program, a.Sum = program, t.sum
	if program {
		f, at, err := d.program(name)
		if err != nil {
			return a, nil, err
		}
		f.Close()
		a.Sum += fmt.Sprint(at.stamp)
	}
	return a, t, nil
}

// program opens the program of an activity for reading: a regular file with one name,
// of root or the daemon's user, which nobody else can write.
func (d folder) program(name string) (*os.File, dated, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		err = errors.New("is a symbolic link: put the program itself here")
	}
	if err != nil {
		return nil, dated{}, fmt.Errorf("the program %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	at, err := stampOf(fd, "")
	if err == nil {
		err = executable(fd)
	}
	if err != nil {
		f.Close()
		return nil, at, fmt.Errorf("the program %s %w", name, err)
	}
	return f, at, nil
}

func executable(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is no regular file: put the program itself here")
	case st.Nlink != 1:
		return errors.New("has more than one name, and one may be in a view: replace it by a copy")
	case st.Mode&0o111 != 0o111:
		return errors.New("cannot be executed by agents: chmod a+rx, or remove it")
	case st.Mode&0o022 != 0:
		return errors.New("can be written by others: chmod go-w")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return errors.New("is of another user: chown it to root")
	}
	return nil
}

// Open opens the program for reading. It is an error if it is not the one that has
// loaded.
func (a Activity) Open(base string) (*os.File, error) {
	dir, err := openFolder(base, activitiesDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, at, err := dir.program(a.Name)
	if err == nil && !strings.HasSuffix(a.Sum, fmt.Sprint(at.stamp)) {
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
	if len(text) > maxDefinition {
		return a, fmt.Errorf("is larger than %d bytes: shorten it", maxDefinition)
	}
	if _, _, bad := scoped.Canonical(text, 64); bad != nil {
		line := 0
		if s, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(any))); ok {
			line = lineAt(text, int(s.Offset))
		}
		return a, atLine(line, fmt.Errorf("%w: correct it", bad))
	}
	var in struct {
		Name, Title, Description string
		InputSchema              json.RawMessage
		Workspace                Workspace
		Annotations              struct {
			Title                                                        string
			ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint bool
		}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return a, atLine(lineAt(text, int(dec.InputOffset())), fmt.Errorf("%w: it has name, title, description, inputSchema, annotations and workspace", err))
	}
	switch {
	case in.Name != "" && in.Name != name:
		return a, atKey(text, "name", fmt.Errorf("name: %q is not what the file is named after: write %s, or rename the file", in.Name, name))
	case strings.TrimSpace(in.Description) == "":
		return a, atKey(text, "description", errors.New("description is missing: say for models what the call does"))
	case len(in.InputSchema) == 0:
		return a, atKey(text, "inputSchema", errors.New(`inputSchema is missing: write {"type": "object", "properties": {...}}`))
	}
	if levels := []Workspace{WorkspaceNone, WorkspaceRead, WorkspaceWrite}; in.Workspace != "" && !slices.Contains(levels, in.Workspace) {
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
	return atLine(lineAt(text, bytes.Index(text, []byte(`"`+key+`"`))), err)
}
