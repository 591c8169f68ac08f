package scope

import (
	"encoding"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrDenied is the error of an operation that a policy denies.
var ErrDenied = errors.New("denied by policy")

// Access is what a policy grants on a path, in the order of restriction: of
// two rules that match, the greater Access holds.
type Access uint8

// What may be granted.
const (
	Write Access = iota // every operation
	Read                // operations that change nothing
	Hide                // no operation; to the agent the path does not exist
	accessCount
)

var accessNames = [accessCount]string{Write: "write", Read: "read", Hide: "hide"}

var (
	_ encoding.TextMarshaler   = Access(0)
	_ encoding.TextUnmarshaler = (*Access)(nil)
)

// String returns the name a definition uses.
func (a Access) String() string {
	if a < accessCount {
		return accessNames[a]
	}
	return fmt.Sprintf("access(%d)", uint8(a))
}

// MarshalText returns the name a definition uses.
func (a Access) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses "write", "read" or "hide".
func (a *Access) UnmarshalText(text []byte) error {
	i := slices.Index(accessNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown access %q: want write, read or hide", text)
	}
	*a = Access(i)
	return nil
}

// Hardlinks says what a view does with a regular file that has more than one
// name, since another of its names may be outside the scope.
type Hardlinks string

// The rules for files of link count above one. The zero value means allow.
const (
	HardlinksAllow Hardlinks = "allow" // like any file
	HardlinksRead  Hardlinks = "read"  // may not be changed
	HardlinksDeny  Hardlinks = "deny"  // may be neither opened nor changed
)

// PathRule grants Access on what Pattern matches, and on all that is below.
type PathRule struct {
	Pattern string `json:"pattern"`
	Access  Access `json:"access"`
}

// PolicySpec is a file policy as it is written down. It survives JSON, which
// is how the daemon hands it to a view.
type PolicySpec struct {
	Access    Access     `json:"access"` // where no rule matches; Hide is an error
	Paths     []PathRule `json:"paths,omitempty"`
	Hardlinks Hardlinks  `json:"hardlinks,omitempty"`
}

// Decision is what a policy says about one operation, or Grants about a name.
type Decision struct {
	Allow  bool
	Ask    bool   // it would be allowed once it is approved; Allow is false
	Hidden bool   // answer ENOENT, as if there were nothing
	Access Access // what the rule grants
	Kind   Kind   // the sort of rule that decided
	Rule   string // its text, for people: "**/.env: hide", "access: read", "tools: [bash]"
	Remedy string // of Grants: the smallest change that would allow it; for files see Policy.Remedy
}

// Policy decides about the files of one view. It is compiled once, never
// changes and may be used by any number of goroutines. The zero Policy allows
// nothing.
//
// Patterns are doublestar globs, matched name by name against a path and each
// of its ancestors, so that a match covers what is below. Hence "dir" and
// "dir/**" mean the same: both cover the directory too, which can then be
// neither renamed nor removed. Case counts, "*" and "?" match bytes that are
// not UTF-8, and nothing but "**" crosses a slash. Of all rules that match the
// most restrictive holds, whatever their order; the spec's Access holds only
// where none does.
type Policy struct {
	spec     PolicySpec
	fallback *rule             // the spec's Access
	all      *rule             // "**"
	paths    map[string]*rule  // "a/b" and "a/b/**", by path
	names    map[string]*rule  // "**/name" and "**/name/**", by name
	suffixes map[string]*rule  // "**/*.ext" and "**/*.ext/**", by what follows the star
	lengths  []int             // of the keys of suffixes, each once
	globs    map[string][]rule // the others, by literal first name, "" where there is none
	below    map[string]*rule  // a rule of paths, by each proper ancestor
	longest  int               // length of the longest key of paths
}

// maxRules bounds the rules of a policy once braces are expanded.
const maxRules = 10_000

// Compile returns the policy that spec describes. The error names the pattern
// and what to write instead.
func Compile(spec PolicySpec) (*Policy, error) {
	if spec.Access != Write && spec.Access != Read {
		return nil, fmt.Errorf("access: %v is no default: want write or read", spec.Access)
	}
	switch spec.Hardlinks {
	case "":
		spec.Hardlinks = HardlinksAllow
	case HardlinksAllow, HardlinksRead, HardlinksDeny:
	default:
		return nil, fmt.Errorf("hardlinks: unknown %q: want allow, read or deny", spec.Hardlinks)
	}
	spec.Paths = slices.Clone(spec.Paths)
	p := &Policy{
		spec:     spec,
		fallback: &rule{kind: KindAccess, access: spec.Access, text: "access: " + spec.Access.String()},
		paths:    map[string]*rule{},
		names:    map[string]*rule{},
		suffixes: map[string]*rule{},
		globs:    map[string][]rule{},
		below:    map[string]*rule{},
	}
	count := 0
	for _, r := range spec.Paths {
		rules, err := parseRule(r)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", r.Pattern, err)
		}
		if count += len(rules); count > maxRules {
			return nil, fmt.Errorf("pattern %q: is past the limit of %d rules: use fewer braces", r.Pattern, maxRules)
		}
		for _, r := range rules {
			p.add(r)
		}
	}
	return p, nil
}

// add files r where File and Move find it without looking at the others.
func (p *Policy) add(r rule) {
	switch path, literal := r.literal(); {
	case len(r.parts) == 0:
		p.all = stricter(p.all, &r)
	case literal:
		p.paths[path] = stricter(p.paths[path], &r)
		p.longest = max(p.longest, len(path))
		if p.inert(&r) {
			return
		}
		for i := strings.LastIndexByte(path, '/'); i >= 0; i = strings.LastIndexByte(path[:i], '/') {
			p.below[path[:i]] = stricter(p.below[path[:i]], &r)
		}
	case r.portable() && r.parts[1].kind == literalPart:
		name := r.parts[1].text
		p.names[name] = stricter(p.names[name], &r)
	case r.portable() && r.parts[1].kind == suffixPart:
		end := r.parts[1].text
		p.suffixes[end] = stricter(p.suffixes[end], &r)
		if !slices.Contains(p.lengths, len(end)) {
			p.lengths = append(p.lengths, len(end))
		}
	default:
		first := ""
		if r.parts[0].kind == literalPart {
			first = r.parts[0].text
		}
		p.globs[first] = append(p.globs[first], r)
	}
}

// inert reports whether r can never change a decision.
func (p *Policy) inert(r *rule) bool { return r.access == Write && p.spec.Access == Write }

// Spec returns what the policy was compiled from, its defaults filled in.
func (p *Policy) Spec() PolicySpec {
	spec := p.spec
	spec.Paths = slices.Clone(spec.Paths)
	return spec
}

// Uniform reports whether the policy says the same of every path, so that it
// does not matter where something stands.
func (p *Policy) Uniform() bool { return len(p.spec.Paths) == 0 }

// File decides about op on rel, a clean path relative to the view's root
// without a leading slash; "" is the root itself. The cost grows with the depth
// of rel and with the rules that hold wildcards beyond "**/" and "/**", not
// with the others.
func (p *Policy) File(op Op, rel string) Decision {
	best := p.all
	for start := 0; start < len(rel); {
		end := len(rel)
		if i := strings.IndexByte(rel[start:], '/'); i >= 0 {
			end = start + i
		}
		if end <= p.longest {
			best = stricter(best, p.paths[rel[:end]])
		}
		name := rel[start:end]
		best = stricter(best, p.names[name])
		for _, n := range p.lengths {
			if n <= len(name) {
				best = stricter(best, p.suffixes[name[len(name)-n:]])
			}
		}
		start = end + 1
	}
	for _, globs := range p.candidates(rel) {
		for i := range globs {
			// Matching costs more than comparing: ask only rules that could win.
			if r := &globs[i]; stricter(best, r) == r && covers(r.parts, rel) {
				best = r
			}
		}
	}
	if best == nil {
		best = p.fallback
	}
	return decide(op, best)
}

// candidates returns the rules with wildcards that could match rel.
func (p *Policy) candidates(rel string) [2][]rule {
	first, _, _ := strings.Cut(rel, "/")
	return [2][]rule{p.globs[""], p.globs[first]}
}

func decide(op Op, r *rule) Decision {
	if r == nil {
		return Decision{Access: Hide, Hidden: true, Kind: KindNothing, Rule: "no policy"}
	}
	return Decision{
		Allow:  r.access == Write || r.access == Read && !op.Mutates(),
		Hidden: r.access == Hide,
		Access: r.access,
		Kind:   r.kind,
		Rule:   r.text,
	}
}

// Move decides whether the directory rel, and with it all that is below, may
// be moved away, appear by a move or be replaced. It may not when a rule could
// match something below rel without covering rel itself, for then the same
// file would be under another rule at its new name. Rules like "**/name" match
// alike everywhere and do not stand in the way.
//
// Asked for both names, and with File allowing OpRenameFrom and OpRename, it
// keeps what holds for each file below. A rule as strict as the default counts
// too: it may restrict what another rule opened. The root never moves.
func (p *Policy) Move(rel string) Decision {
	if p.fallback == nil {
		return decide(OpRename, nil)
	}
	if rel == "" {
		return Decision{Access: Read, Kind: KindRoot, Rule: "root of the view"}
	}
	if r := p.below[rel]; r != nil {
		return Decision{Access: Read, Kind: KindBelow, Rule: r.text}
	}
	for _, globs := range p.candidates(rel) {
		for i := range globs {
			r := &globs[i]
			if !r.portable() && !p.inert(r) && reachesBelow(r.parts, rel) && !covers(r.parts, rel) {
				return Decision{Access: Read, Kind: KindBelow, Rule: r.text}
			}
		}
	}
	return Decision{Allow: true, Access: Write, Kind: KindAccess, Rule: p.fallback.text}
}

// Linked is File for a regular file with nlink names: where File allows, the
// hardlinks rule may still refuse.
func (p *Policy) Linked(op Op, rel string, nlink uint64) Decision {
	d := p.File(op, rel)
	if !d.Allow || nlink <= 1 {
		return d
	}
	refused := p.spec.Hardlinks == HardlinksRead && op.Mutates() ||
		p.spec.Hardlinks == HardlinksDeny && (op == OpOpen || op.Mutates())
	if refused {
		return Decision{Access: Read, Kind: KindHardlinks, Rule: "hardlinks: " + string(p.spec.Hardlinks)}
	}
	return d
}
