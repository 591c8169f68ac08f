package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// The directories of a base directory that define agents.
const (
	agentsDir     = "agents.d"
	extensionsDir = "extensions.d"
	skillsDir     = "skills"
	ActivitiesDir = "activities.d"
)

// parsed is a parsed definition, or its errors.
type parsed struct {
	id   scope.ID
	file string       // relative to the base directory
	text *folder.Text // nil if the file could not be read
	def  *Definition
	refs []catalog.Ref
	of   *folder.Text // of a branch: the text of its agent
	err  error

	trusted *repository // the trusted copy of a repository's file; nil for none
}

// readAgents reads {base}/agents.d/*.md, and from each further directory the definitions of agents that none before it defines,
// sorted by name. at are the stamps of the directories before they were read. odd are warnings about files that look like
// definitions.
func readAgents(base string, host Host, last map[scope.ID]*loaded) (all []*parsed, at [3]folder.Dated, odd []error, err error) {
	dir, err := folder.Open(base, agentsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, at, nil, fmt.Errorf("no definitions: %q does not exist: create it", filepath.Join(base, agentsDir))
	}
	if err == nil {
		all, at[0], odd, err = readDefinitions(dir, host, last)
	}
	if err != nil {
		return nil, at, nil, fmt.Errorf("definitions: %w", err)
	}
	for i, name := range host.further() {
		dir, err = folder.OpenUser(base, name, agentsDir)
		if err == nil {
			var more []*parsed
			var of []error
			more, at[1+i], of, err = readDefinitions(dir, host, last)
			odd = append(odd, of...)
			all = append(all, slices.DeleteFunc(more, func(f *parsed) bool {
				return slices.ContainsFunc(all, func(own *parsed) bool { return own.id == f.id })
			})...)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, at, nil, fmt.Errorf("%s: %w", path.Join(name, agentsDir), err)
		}
	}
	var names []string
	for _, p := range all {
		names = append(names, path.Base(p.file))
	}
	for _, p := range all {
		all = append(all, p.team(names)...)
	}
	slices.SortFunc(all, func(a, b *parsed) int { return strings.Compare(path.Base(a.file), path.Base(b.file)) })
	resolveBranches(all)
	return all, at, odd, nil
}

// readDefinitions reads the .md files of a directory, and closes it. It parses only files that differ from last, in parallel.
func readDefinitions(dir folder.Folder, host Host, last map[scope.ID]*loaded) (all []*parsed, at folder.Dated, odd []error, err error) {
	defer dir.Close()
	if at, err = folder.StampOf(int(dir.Fd()), ""); err != nil {
		return nil, at, nil, fmt.Errorf("%w: check its file system", err)
	}
	found, err := dir.Names("")
	if err != nil {
		return nil, at, nil, err
	}
	names := slices.DeleteFunc(slices.Clone(found), func(name string) bool {
		ext := path.Ext(name)
		if slices.Contains([]string{".yaml", ".yml", ".json", ".md", ".markdown"}, strings.ToLower(ext)) && ext != ".md" && !strings.HasSuffix(name, trustedSuffix) {
			remedy := fmt.Sprintf("name it %s.md, with the keys between two --- lines", strings.TrimSuffix(name, ext))
			odd = append(odd, &fields.FileError{File: path.Join(dir.Rel, name), Err: fmt.Errorf("is not read: %s", remedy)})
		}
		return ext != ".md"
	})
	all = make([]*parsed, len(names))
	var wg sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
				id := stem(names[i])
				all[i] = readAgent(dir, names[i], id, last[id])
				if _, ok := slices.BinarySearch(found, string(id)+trustedSuffix); ok {
					all[i].trusted = readTrusted(dir, host, id, last[id])
				}
			}
		})
	}
	wg.Wait()
	return all, at, odd, nil
}

func stem(name string) scope.ID { return scope.ID(strings.TrimSuffix(name, ".md")) }

// readAgent reads the definition of an agent from a file of a directory.
func readAgent(dir folder.Folder, name string, id scope.ID, last *loaded) *parsed {
	p := &parsed{id: id, file: path.Join(dir.Rel, name)}
	var old *folder.Text
	if last != nil && last.file == p.file {
		old = last.text
	}
	if p.text, p.err = dir.Read(name, old); p.err != nil {
		p.err = fields.ErrorAt(p.file, 0, id, p.err)
		return p
	}
	if p.text.Is(old) && last.def != nil {
		p.def, p.refs, p.err = last.def, last.refs, last.parsed.err
		return p
	}
	p.def, p.refs, p.err = parseDefinition(p.file, id, p.text.Data)
	return p
}

// readSkills returns the names of the directories {base}/skills/<name>/ that
// have a SKILL.md. It omits symbolic links and names that cannot be in a list.
func readSkills(base string) ([]string, error) {
	dir, err := folder.Open(base, skillsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: skillsDir, Err: err}
	}
	defer dir.Close()
	names, err := dir.Names("")
	if err != nil {
		return nil, &fields.FileError{File: skillsDir, Err: err}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !fields.IsPlainName(name, maxSkill) || !dir.Holds(name, "SKILL.md") }), nil
}

// maxSkill limits the name of a skill, in bytes.
const maxSkill = 128

// HostFile is what the operator has set for all agents.
const HostFile = paths.HostFile
