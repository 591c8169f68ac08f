package hosts

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/network"
)

// PresetsDir is the directory of a base directory that has the operator's presets.
const PresetsDir = "presets.d"

//go:embed presets/*.yaml
var presetFiles embed.FS

// BuiltinPresets returns the presets of this package. Nobody changes them.
var BuiltinPresets = sync.OnceValue(func() map[string]*Preset {
	all := map[string]*Preset{}
	entries, _ := presetFiles.ReadDir("presets") // cannot fail: it is in the program
	for _, entry := range entries {
		data, _ := presetFiles.ReadFile("presets/" + entry.Name())
		p, err := ParsePreset(entry.Name(), data)
		if err != nil {
			panic(err) // a test reads each of them
		}
		p.File = ""
		all[p.Name] = p
	}
	return all
})

// Preset is a list of hosts that a network may name. It is one file: presets.d/<name>.yaml of a base directory or of a user's
// settings, or one of this package. Of one name that of the base holds, else the user's.
type Preset struct {
	Name        string
	Description string
	Allow       []network.HostRule
	Credentials map[string]Credential
	Text        string // of the file
	File        string // relative to the base directory, absolute in a user's settings; "": of this package
}

// ParsePreset reads the text of a preset. Its errors are of type
// *fields.FileError.
func ParsePreset(file string, data []byte) (*Preset, error) {
	p := &Preset{Name: strings.TrimSuffix(path.Base(file), ".yaml"), Text: string(data), File: file}
	fail := func(err error) (*Preset, error) { return nil, fields.ErrorAt(file, 1, "", err) }
	if !fields.IsPlainName(p.Name, folder.MaxName) {
		return fail(fmt.Errorf("%q is no name of a preset: write letters, digits, '-', '_' and '.'", p.Name))
	}
	if len(data) > frontmatter.MaxKeys {
		return fail(fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	of := Network{Kind: Rules}
	err := fields.Parse(data, map[string]fields.Field{"description": fields.Prose(&p.Description), "allow": allowField(&of)})
	if err == nil && len(of.Rules.Allow) == 0 {
		err = errors.New("allow is missing: list the hosts")
	}
	if err == nil {
		_, err = network.Compile(of.Rules)
	}
	if err != nil {
		return fail(err)
	}
	p.Allow, p.Credentials = of.Rules.Allow, of.Credentials
	return p, nil
}

// Presets returns the presets of a base directory, of a user's settings and of this package, by name, and an error for each
// file that does not load. "" is no directory.
func Presets(base, user string) (map[string]*Preset, []error) {
	return ReadPresets(base, user, nil)
}

// ReadPresets is Presets, but keeps what last has of a file that does not load. Without that nothing else has the file's name,
// and without a directory no preset of this package is there: it could allow more.
func ReadPresets(base, user string, last map[string]*Preset) (map[string]*Preset, []error) {
	files := map[string]*Preset{}
	for _, p := range last {
		files[p.File] = p
	}
	files, errs := folder.ReadFiles(base, user, PresetsDir, ParsePreset, files)
	all := maps.Clone(BuiltinPresets())
	for _, p := range files {
		if over := all[p.Name]; over == nil || p.over(over.File) {
			all[p.Name] = p
		}
	}
	for _, err := range errs {
		bad, ok := errors.AsType[*fields.FileError](err)
		if !ok || files[bad.File] != nil {
			continue
		}
		name := strings.TrimSuffix(path.Base(bad.File), ".yaml")
		switch over := all[name]; {
		case path.Base(bad.File) == PresetsDir:
			maps.DeleteFunc(all, func(name string, p *Preset) bool { return p.File == "" && last[name] == nil })
		case over != nil && over.over(bad.File): // it holds in any case
		case last[name] != nil:
			all[name] = last[name]
		default:
			delete(all, name)
		}
	}
	return all, errs
}

// over reports whether the preset holds, and not that of the same name in a file.
func (p *Preset) over(file string) bool {
	return p.File != "" && (file == "" || filepath.IsAbs(file) && !filepath.IsAbs(p.File))
}

// Narrowest returns the name of the preset with the fewest rules that allows connections to a host in canonical form; "": none
// does. A preset with a credential is more than a host, and none that it returns.
func Narrowest(presets map[string]*Preset, host string, port uint16) (name string) {
	for _, p := range presets {
		if len(p.Credentials) > 0 || name != "" && (len(p.Allow) > len(presets[name].Allow) || len(p.Allow) == len(presets[name].Allow) && p.Name > name) {
			continue
		}
		if n, err := network.Compile(network.Spec{Allow: p.Allow}); err == nil {
			if d, _ := n.Connect(host, port); d.Allow {
				name = p.Name
			}
		}
	}
	return name
}
