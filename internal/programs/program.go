package programs

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/login"
)

// dir is the directory of a base directory that has the operator's programs.
const dir = "programs.d"

//go:embed programs/*.yaml
var files embed.FS

// Program says how an agent program runs in a sandbox. It is one file: programs.d/<name>.yaml of a base directory or of a
// user's settings, or one of this package. Of one name that of the base holds, else the user's.
type Program struct {
	Name        string
	Description string
	Command     string            // its name in PATH; "" is Name
	Install     string            // the command that installs it, for people
	Networks    []string          // presets: it needs the hosts of one of them; none: it needs no network
	Args        []string          // before those of the user
	Env         map[string]string // variables, under those of the user
	Expose      []string          // what it needs of the host beside itself and its interpreter
	File        string            // relative to the base directory, absolute in a user's settings; "": of this package
	Prepare     string            // commands of sh(1) in the sandbox before it starts
	Login       *login.Login      // nil: it has none that scopefs knows
	Text        string            // of its file
}

// ErrUnknown is the error of a name that no program has.
var ErrUnknown = errors.New("no program")

// File returns the file of a program of a base directory, or of a user's settings.
func File(base, name string) string {
	return path.Join(base, dir, name+".yaml")
}

// Parse reads the text of a program. Its errors are of type
// *fields.FileError.
func Parse(file string, data []byte) (*Program, error) {
	p := &Program{Name: strings.TrimSuffix(path.Base(file), ".yaml"), File: file, Text: string(data)}
	fail := func(err error) (*Program, error) { return nil, fields.ErrorAt(file, 1, "", err) }
	if !fields.IsPlainName(p.Name, folder.MaxName) {
		return fail(fmt.Errorf("%q is no name of a program: write letters, digits, '-', '_' and '.'", p.Name))
	}
	if len(data) > frontmatter.MaxKeys {
		return fail(fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	err := fields.Parse(data, map[string]fields.Field{
		"description": fields.Text(&p.Description),
		"command":     fields.Text(&p.Command),
		"install":     fields.Text(&p.Install),
		"network":     fields.Texts(&p.Networks, "network", nil),
		"args":        fields.Texts(&p.Args, "args", nil),
		"env":         fields.Env(&p.Env, nil),
		"prepare":     fields.Prose(&p.Prepare),
		"login":       loginField(&p.Login),
		"expose": fields.Texts(&p.Expose, "expose", func(name string) error {
			if !path.IsAbs(name) {
				return fmt.Errorf("%q is relative: write an absolute path", name)
			}
			return nil
		}),
	})
	if p.Command = cmp.Or(p.Command, p.Name); err == nil && strings.Contains(p.Command, "/") {
		err = fmt.Errorf("command: %q is a path: write a name, which is looked up in PATH", p.Command)
	}
	if err != nil {
		return fail(err)
	}
	return p, nil
}

// All returns all programs, by name, and an error for each file that does not load. "" is no directory.
func All(base, user string) (map[string]*Program, []error) {
	own, errs := folder.ReadFiles(base, user, dir, Parse, nil)
	all := map[string]*Program{}
	for _, name := range Builtin() {
		p, err := builtin(name)
		if err != nil {
			panic(err) // a test reads each of them
		}
		all[name] = p
	}
	for _, p := range own {
		if over := all[p.Name]; over == nil || !path.IsAbs(p.File) || over.File == "" {
			all[p.Name] = p
		}
	}
	return all, errs
}

// Of returns a program of a base directory, of a user's settings or of this package.
func Of(base, user, name string) (*Program, error) {
	if !fields.IsPlainName(name, folder.MaxName) {
		return nil, fmt.Errorf("%q is no name of a program: there are %s", name, strings.Join(Builtin(), ", "))
	}
	file, text, err := folder.ReadFirst(base, user, dir, name+".yaml")
	if err == nil {
		return Parse(file, text.Data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return builtin(name)
}

func builtin(name string) (*Program, error) {
	data, err := files.ReadFile("programs/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("%w %q: there are %s; scopefs programs add %s writes %s for another", ErrUnknown, name,
			strings.Join(Builtin(), ", "), name, path.Join(dir, name+".yaml"))
	}
	p, err := Parse(name+".yaml", data)
	if err == nil {
		p.File = ""
	}
	return p, err
}

// Builtin returns the names of the programs of this package.
func Builtin() (names []string) {
	entries, _ := files.ReadDir("programs") // cannot fail: it is in the program
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return names
}
