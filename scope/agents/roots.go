package agents

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// Root is a directory of the host that an agent's sandboxes have beside the agent's own. It is a view of its own: an Agent of the
// snapshot whose definition has RootOf, with no tools, network or HOME.
type Root struct {
	Dir      string       // absolute and clean
	Access   scope.Access // Write, Hold, Read, or Ask, which is Write once the operator has approved the directory as a whole
	Paths    []scope.PathRule
	Changes  Changes // ChangesInherited: those of the agent
	Worktree string  // Dir is the repository of the agent's directory, a linked worktree of this name in it: see worktreeRules. "": it is none
	Lent     bool    // only sandboxes of commands that name it have it
}

// SetAccess sets the access; with read a root that asks stays without changes once the operator has opened it.
func (r *Root) SetAccess(access scope.Access, read bool) {
	if r.Access = access; read {
		r.Paths = append(r.Paths, scope.PathRule{Pattern: "**", Access: scope.Read})
	}
}

// readOnly reports whether no rule lets the root change.
func (r *Root) readOnly() bool {
	return r.Access == scope.Read || slices.Contains(r.Paths, scope.PathRule{Pattern: "**", Access: scope.Read})
}

// ChangesInherited is Changes of a Root that has what its agent has.
const ChangesInherited Changes = "inherited"

// rootsField reads the key roots of view.
func rootsField(out *[]Root) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			r, access := Root{Changes: ChangesInherited}, rootAccess{}
			err := fields.Mapping(map[string]fields.Field{
				"dir":     dirField(&r.Dir),
				"access":  rootAccessField(&access),
				"paths":   pathsField(&r.Paths),
				"changes": changesField(&r.Changes),
				"worktree": fields.Checked(fields.Text(&r.Worktree), func() error {
					if r.Worktree == "" || strings.ContainsAny(r.Worktree, "/\x00") || strings.Trim(r.Worktree, ".") == "" {
						return fmt.Errorf("%q is no name: want that of a directory in .git/worktrees", r.Worktree)
					}
					return nil
				}),
			})(item)
			r.SetAccess(access.Access, access.read)
			same := func(o Root) bool { return o.Dir == r.Dir }
			switch {
			case err != nil:
				return err
			case r.Dir == "":
				return errors.New("dir is missing: write {dir: /PATH, access: read}")
			case r.Worktree != "" && (r.Access != scope.Write || r.Paths != nil):
				return errors.New("worktree: its rules are those of git: remove access and paths")
			case slices.ContainsFunc(*out, same):
				return fmt.Errorf("%q is here twice: remove one", r.Dir)
			}
			*out = append(*out, r)
			return nil
		})
	}
}

// checkRoots returns an error for a root whose view could not decide.
func (d *Definition) checkRoots() error {
	if len(d.View.Roots) > 0 && d.Placement == PlacementOne {
		return errors.New("view.roots: a lease is for the agent's directory alone: remove placement, or roots")
	}
	for _, r := range d.View.Roots {
		own := RootOfAgent(d, r)
		_, err := scope.Compile(own.View.PolicySpec())
		if err == nil {
			err = own.checkChanges()
		}
		if err != nil {
			return fmt.Errorf("view.roots: %q: %w", r.Dir, err)
		}
	}
	return nil
}

// RootID returns the id of a root of an agent. It lasts as long as the directory's path, and the history with it. One that is lent
// without changes is another view of the directory.
func RootID(of scope.ID, r Root) scope.ID {
	const most, digits = 63, 5
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %v %s", of, r.Lent && r.readOnly(), r.Dir))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:digits]
	name := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(filepath.Base(r.Dir)))
	id := string(of[:min(len(of), most-1-digits)])
	if room := most - len(id) - 1 - 1 - digits; room > 0 {
		id += "-" + strings.Trim(name[:min(len(name), room)], "-")
	}
	return scope.ID(strings.TrimSuffix(id, "-") + "-" + hash)
}

// RootOfAgent returns the definition of the view of a root. What the agent's own rules hide or seal, they hide or seal at the same
// path below a root, and its protections hold there.
func RootOfAgent(def *Definition, r Root) *Definition {
	own := &Definition{Name: RootID(def.Name, r), RootOf: def.Name, Lent: r.Lent, Dir: r.Dir, User: def.User, Identity: def.Identity,
		View: def.View, History: def.History, Limits: def.Limits}
	own.Tools, own.Skills, own.MCPs, own.Members = []string{}, []string{}, []string{}, []string{}
	own.Description = fmt.Sprintf("the directory %s of %s", r.Dir, def.Name)
	v := &own.View
	v.Roots, v.Access, v.AllowOther = nil, r.Access, false
	if v.Closed = r.Access == scope.Ask; v.Closed {
		v.Access = scope.Write
	}
	v.Paths = slices.Clone(r.Paths)
	if r.Worktree != "" {
		v.worktree(r.Worktree)
	}
	for _, rule := range def.View.Paths {
		if rule.Access > scope.Read {
			v.Paths = append(v.Paths, rule)
		}
	}
	if r.Changes != ChangesInherited && def.Branch == "" {
		v.Changes = r.Changes
	}
	if v.Access == scope.Read && len(v.Paths) == 0 {
		v.Changes = ChangesDirect // there are none
	}
	return own
}

// Beside returns where the agent's directory is in its sandboxes, and its roots: see beneath.Root. Without roots both are empty.
func (d *Definition) Beside() (place string, roots []string) {
	for _, r := range d.View.Roots {
		place, roots = d.Dir, append(roots, r.Dir)
	}
	return place, roots
}

// worktreeFiles are what git in a linked worktree changes of the directory that all worktrees of a repository have, see
// gitrepository-layout(5). The rest is the main worktree's, such as HEAD and index, and what git of the host executes or reads, such as
// hooks and info.
var worktreeFiles = []string{
	"objects", "refs", "logs", "packed-refs", "packed-refs.{lock,new}", "reftable", "shallow", "shallow.lock", "rr-cache", "lfs",
	"gc.pid", "gc.pid.lock", "gc.log", "gc.log.lock", "info/refs", "info/refs_*", "FETCH_HEAD",
}

// worktree makes the view of a repository that of one of its linked worktrees: other worktrees, the main one's files and hooks are read,
// and config is as protect says. The kernel caches no name: another view of the repository changes packed-refs and refs together.
func (v *ViewSpec) worktree(name string) {
	v.Access, v.Cache = scope.Read, CacheNone
	may := append(slices.Clone(worktreeFiles), "worktrees/"+scope.QuotePattern(name))
	if v.Git != nil {
		git := *v.Git
		git.Bare, v.Git = true, &git
		if git.Config != nil {
			may = append(may, "config", "config.lock")
		}
	}
	// The main worktree's reflog. A bare repository has no directory logs until a worktree makes it.
	v.Paths = append(v.Paths, scope.PathRule{Pattern: "logs/HEAD", Access: scope.Read})
	for _, pattern := range may {
		v.Paths = append(v.Paths, scope.PathRule{Pattern: pattern, Access: scope.Write})
	}
}

// addRoots adds the roots of agents to the snapshot. Unchanged agents of last keep theirs.
func (s *Snapshot) addRoots(last *Snapshot) (errs []error) {
	of := maps.Clone(s.Agents)
	for id, a := range of {
		for _, r := range slices.Concat(a.View.Roots, s.lent[id]) {
			if r.Lent && slices.ContainsFunc(a.View.Roots, func(o Root) bool { return o.Dir == r.Dir }) {
				continue
			}
			name := RootID(id, r)
			if of[name] != nil {
				wrong := fmt.Errorf("view.roots: an agent has the name of root %q, %s: rename one", r.Dir, name)
				errs = append(errs, fields.ErrorAt(a.File, 1, id, wrong))
				continue
			}
			if old := last.Agents[name]; old != nil && last.Agents[id] == a && old.View.Closed == (r.Access == scope.Ask) {
				s.Agents[name] = old
				continue
			}
			def, err := s.known.flagged(RootOfAgent(a.Definition, r))
			if err != nil {
				errs = append(errs, fields.ErrorAt(a.File, 1, id, err))
				continue
			}
			s.Agents[name] = &Agent{def, compileGrants(def, s.known, Servers{}), a.File}
		}
	}
	return errs
}
