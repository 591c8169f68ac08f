package scope

import (
	"encoding"
	"errors"
	"fmt"
	"slices"
)

// ErrDenied reports an operation that a policy denies.
var ErrDenied = errors.New("the agent's rules do not allow it")

// Access is the access that a policy grants to a path. A greater Access is more
// restrictive, and applies if two rules match.
type Access uint8

// The levels of access.
const (
	Write Access = iota // every operation
	Hold                // every operation, on a version of the agent's own, until the operator takes it over
	Read                // operations that change nothing
	Ask                 // names and attributes; what else the other rules allow needs the operator's approval
	Seal                // attributes alone, by name: git sees that its file exists, and no listing has it
	Hide                // no operation; the path does not exist for the agent
	accessCount
)

var accessNames = [accessCount]string{Write: "write", Hold: "hold", Read: "read", Ask: "ask", Seal: "seal", Hide: "hide"}

var (
	_ encoding.TextMarshaler   = Access(0)
	_ encoding.TextUnmarshaler = (*Access)(nil)
)

// String returns the name used in a definition.
func (a Access) String() string {
	if a < accessCount {
		return accessNames[a]
	}
	return fmt.Sprintf("access(%d)", uint8(a))
}

// MarshalText returns the name used in a definition.
func (a Access) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses a name used in a definition.
func (a *Access) UnmarshalText(text []byte) error {
	i := slices.Index(accessNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown access %q: want write, hold, read, ask, seal or hide", text)
	}
	*a = Access(i)
	return nil
}

// Hardlinks is the rule for regular files with more than one name. Another name
// of such a file may be outside the scope.
type Hardlinks string

// The rules for files with a link count above one. The zero value means allow.
const (
	HardlinksAllow Hardlinks = "allow" // no restriction
	HardlinksRead  Hardlinks = "read"  // deny changes
	HardlinksDeny  Hardlinks = "deny"  // deny opening and changes
)

// Within returns the stricter of two rules.
func (h Hardlinks) Within(other Hardlinks) Hardlinks {
	order := []Hardlinks{"", HardlinksAllow, HardlinksRead, HardlinksDeny}
	if slices.Index(order, h) < slices.Index(order, other) {
		return other
	}
	return h
}

// PathRule grants Access to the paths that Pattern matches, and to everything
// below them.
type PathRule struct {
	Pattern string `json:"pattern"`
	Access  Access `json:"access"`
	Name    string `json:"name,omitempty"` // of the set that the rule is of, in place of Pattern in texts; "": of none
}

// Protect is a named list of patterns of paths that are read-only, or held: what the host would
// execute later. They match in every case of letters: programs of the host that read
// MAKEFILE, and file systems that fold names, find the file all the same.
type Protect struct {
	Name  string   `json:"name"`
	Paths []string `json:"paths"`
	Hold  bool     `json:"hold,omitempty"` // the access is Hold, in repositories that Git protects Read

	// Packages says that the patterns do not match in packages that a package manager has installed (node_modules,
	// site-packages, target/package, Composer's vendor). These ship such files, and nobody works in their directories.
	Packages bool `json:"packages,omitempty"`
}

// PolicySpec is a file policy in its written form. It can be encoded as JSON,
// which the daemon sends to a view.
type PolicySpec struct {
	Access    Access     `json:"access"` // the default if no rule matches; Hide is an error
	Paths     []PathRule `json:"paths,omitempty"`
	Hardlinks Hardlinks  `json:"hardlinks,omitempty"`
	Protect   []Protect  `json:"protect,omitempty"`
	Git       *GitRules  `json:"git,omitempty"` // nil: git's files are like others

	// Closed lets every operation wait for the operator's approval of the view as a whole.
	Closed  bool    `json:"closed,omitempty"`
	Granted []Grant `json:"granted,omitempty"` // what the operator has approved of Closed and of paths with Ask
}

// Grant is an approval of the operator.
type Grant struct {
	Pattern string `json:"pattern,omitempty"` // of paths with Ask, and of what is below; "": of Closed
	Write   bool   `json:"write,omitempty"`   // else of opens that change nothing
}

// Decision is the result of a policy for an operation, or of Grants for a name.
type Decision struct {
	Allow  bool
	Ask    bool       // the operation needs approval; Allow is false
	Judge  GitContent // the content decides: of the file that is renamed, or of what is written
	Own    bool       // the operation is for a file that the view created, no other
	Hidden bool       // return ENOENT, as for a path that does not exist
	Others bool       // no rule names the host: it is refused because nothing allows it
	Access Access     // the access that the rule grants
	Below  bool       // of Move: lists of Protect decide alike if they do about each name below, see Listed
	Kind   Kind       // the kind of the rule that decided
	Rule   string     // the rule's text, for people: "**/.env: hide", "access: read", "tools: [bash]"
	Remedy string     // from Grants: the smallest change that would allow it; for files see Policy.Remedy
}

// Wider reports whether d allows what the other decision does not, or leaves to the operator what the other one denies.
func (d Decision) Wider(than Decision) bool {
	return d.Allow && !than.Allow || d.Ask && !than.Ask && !than.Allow
}

// Policy decides about the files of one view. It is immutable and safe for
// concurrent use. The zero Policy allows nothing.
//
// Patterns are doublestar globs. They are matched component by component
// against a path and each of its ancestors, so that a match covers everything
// below. Hence "dir" and "dir/**" are equivalent: both also cover the
// directory, which can then be neither renamed nor removed. Matching is
// case-sensitive, except for Protect. "*" and "?" match bytes that are not
// UTF-8, and only "**" crosses a slash. Of all rules that match, the most
// restrictive applies, whatever their order. The spec's Access applies only if
// no rule matches.
type Policy struct {
	spec     PolicySpec
	fallback *rule     // the spec's Access
	rules    ruleIndex // of the spec's Paths
	protect  ruleIndex // of the spec's Protect, folded
	sources  ruleIndex // likewise, of those with Packages
	placed   placed    // of both
	holds    bool      // a rule grants Hold
	asks     ruleIndex // of the spec's Paths with Ask
	reads    ruleIndex // of the spec's Granted
	writes   ruleIndex // of those with Write
	asking   bool      // a rule has Ask
	closed   bool      // the spec's Closed, without a grant
}

// maxRules limits the rules of a policy after brace expansion.
const maxRules = 10_000

// Covering returns a function that reports whether one of the patterns, as of [PathRule], covers a path. None covers the root.
func Covering(patterns []string) (covers func(rel string) bool, err error) {
	var spec PolicySpec
	for _, pattern := range patterns {
		spec.Paths = append(spec.Paths, PathRule{Pattern: pattern, Access: Hide})
	}
	policy, err := Compile(spec)
	return func(rel string) bool { return rel != "" && policy.File(OpLookup, rel).Hidden }, err
}

// Compile returns the policy that spec describes. An error names the pattern
// and the correction.
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
		rules:    newIndex(),
		protect:  newIndex(),
		sources:  newIndex(),
		asks:     newIndex(),
		reads:    newIndex(),
		writes:   newIndex(),
		closed:   spec.Closed,
	}
	count := 0
	add := func(x *ruleIndex, r PathRule, as rule) error {
		rules, err := parseRule(r)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", r.Pattern, err)
		}
		if count += len(rules); count > maxRules {
			return fmt.Errorf("pattern %q: is past the limit of %d rules: use fewer braces", r.Pattern, maxRules)
		}
		for i := range rules {
			r := &rules[i]
			if as.kind != "" {
				r.kind, r.text = as.kind, as.text
			}
			r.inert = r.access == Write && spec.Access == Write
			p.holds = p.holds || r.access == Hold
			if as.kind == KindProtect {
				p.placed.add(r, x == &p.sources)
			}
			x.add(r)
		}
		return nil
	}
	for _, r := range spec.Paths {
		x := &p.rules
		if r.Access == Ask { // a gate before the other rules, which decide what an approval allows
			x, p.asking = &p.asks, true
		}
		if err := add(x, r, rule{}); err != nil {
			return nil, err
		}
	}
	for _, g := range spec.Granted {
		if p.closed = p.closed && g.Pattern != ""; g.Pattern == "" {
			continue
		}
		for _, x := range []*ruleIndex{&p.reads, &p.writes} {
			if x == &p.writes && !g.Write {
				continue
			}
			if err := add(x, PathRule{Pattern: g.Pattern, Access: Read}, rule{}); err != nil {
				return nil, err
			}
		}
	}
	for _, list := range spec.Protect {
		as := rule{kind: KindProtect, text: "protect " + list.Name}
		for _, pattern := range list.Paths {
			r, x := PathRule{Pattern: Fold(pattern), Access: list.access()}, &p.protect
			if list.Packages {
				x = &p.sources
			}
			if err := add(x, r, as); err != nil {
				return nil, fmt.Errorf("protect %s: %w", list.Name, err)
			}
		}
	}
	return p, nil
}

func (l *Protect) access() Access {
	if l.Hold {
		return Hold
	}
	return Read
}

// Released returns the spec with Write in place of Hold.
func (s PolicySpec) Released() PolicySpec {
	s.Protect = slices.DeleteFunc(slices.Clone(s.Protect), func(l Protect) bool { return l.Hold })
	s.Paths = slices.Clone(s.Paths)
	for i := range s.Paths {
		if s.Paths[i].Access == Hold {
			s.Paths[i].Access = Write
		}
	}
	return s
}

// Holds reports whether a rule of the spec grants Hold.
func (s PolicySpec) Holds() bool {
	return slices.ContainsFunc(s.Paths, func(r PathRule) bool { return r.Access == Hold }) ||
		slices.ContainsFunc(s.Protect, func(l Protect) bool { return l.Hold })
}

// Held reports whether changes at rel are held.
func (p *Policy) Held(rel string) bool { return p.holds && p.ByPaths(OpStat, rel).Access == Hold }

// Uniform reports whether the policy has no path rules, so that the location of
// a file does not matter.
func (p *Policy) Uniform() bool {
	return !p.closed && len(p.spec.Paths) == 0 && len(p.spec.Protect) == 0 && p.spec.Git == nil
}

// Repository reports whether rel is in a repository that Git protects. The host's git writes
// to some names there, also through links.
func (p *Policy) Repository(rel string) bool {
	return p.spec.Git != nil && classifyGit(p.spec.Git.path(rel)).inside
}

// GitPath returns a path as CheckGit has it: see GitRules.Bare.
func (p *Policy) GitPath(rel string) string { return p.spec.Git.path(rel) }

// GitConfig returns the keys for CheckGit.
func (p *Policy) GitConfig() []string {
	if p.spec.Git == nil {
		return nil
	}
	return p.spec.Git.Config
}

// File returns the decision about op on rel, a clean path relative to the
// view's root without a leading slash; "" is the root. The cost grows with the
// depth of rel and with the number of rules that have wildcards beyond "**/"
// and "/**". It does not grow with the number of other rules.
func (p *Policy) File(op Op, rel string) Decision {
	d := p.approved(op, rel)
	if p.closed {
		return Decision{Ask: true, Judge: d.Judge, Own: d.Own, Access: Ask, Kind: KindAccess, Rule: "access: " + Ask.String()}
	}
	if r := p.asked(op, rel); r != nil && d.Allow { // an operation that an approval has allowed is judged also if that has ended
		return Decision{Ask: op != OpLinkFrom, Judge: d.Judge, Own: d.Own, Access: d.Access, Kind: r.kind, Rule: r.text}
	}
	return d
}

// approved is File once the operator has approved everything.
func (p *Policy) approved(op Op, rel string) Decision {
	d := p.ByPaths(op, rel)
	if p.spec.Git != nil && d.Allow {
		if git, ok := p.spec.Git.file(op, rel); ok {
			d = git
		}
	}
	return d
}

// Gate returns the rule of Ask for rel, whatever the operator has granted; "": there is none.
func (p *Policy) Gate(rel string) string {
	if r := p.asks.find(nil, rel); r != nil {
		return r.text
	}
	return ""
}

// Asks reports whether a change of rel needs an approval that nobody has granted.
func (p *Policy) Asks(rel string) bool { return p.asked(OpRename, rel) != nil }

// asked returns the rule of Ask for rel if op needs an approval that nobody has granted, else nil. A handle's reads and writes do not:
// its open did. Nobody grants a hard link: the other name would outlast the approval.
func (p *Policy) asked(op Op, rel string) *rule {
	if !p.asking || op != OpOpen && !op.Mutates() || op == OpWrite {
		return nil
	}
	r := p.asks.find(nil, rel)
	if r == nil || op != OpLinkFrom && p.writes.find(nil, rel) != nil || !op.Mutates() && p.reads.find(nil, rel) != nil {
		return nil
	}
	return r
}

// Spec returns what the policy was compiled of.
func (p *Policy) Spec() PolicySpec { return p.spec }

// Approved returns the policy as it decides once the operator has approved everything that it asks about.
func (p *Policy) Approved() *Policy {
	if !p.asking && !p.closed {
		return p
	}
	all := *p
	all.asking, all.closed = false, false
	return &all
}

// Closed reports whether every operation needs an approval of the view as a whole.
func (p *Policy) Closed() bool { return p.closed }

// Strict returns the access of rel as File has it, and Ask where a change needs an approval.
func (p *Policy) Strict(rel string) Access {
	a := p.File(OpStat, rel).Access
	if a < Ask && p.asked(OpOpenWrite, rel) != nil {
		if a = max(a, Read); p.asked(OpOpen, rel) != nil {
			a = Ask
		}
	}
	return a
}

// ByPaths is File without the rules for git and for approvals.
func (p *Policy) ByPaths(op Op, rel string) Decision {
	best := p.rules.find(nil, rel)
	whole := p.holds && p.spec.Git != nil && classifyGit(p.spec.Git.path(rel)).inside // git's files are not held: File judges them
	if whole && best != nil && best.access == Hold {
		best = nil
	}
	if len(p.spec.Protect) > 0 {
		listed := p.listed(best, rel)
		if best == nil && listed != nil && listed.access < p.fallback.access {
			listed = nil // a list opens nothing
		}
		best = listed
	}
	if whole && best != nil && best.access == Hold {
		return Decision{Allow: !op.Mutates(), Access: Read, Kind: best.kind, Rule: best.text}
	}
	if best == nil {
		best = p.fallback
	}
	return decide(op, best)
}

// listed returns the strictest of best, which may be nil, and the rules of Protect for rel.
func (p *Policy) listed(best *rule, rel string) *rule {
	folded := Fold(rel)
	best = p.protect.find(best, folded)
	if r := p.sources.find(best, folded); r != best && !packaged(rel) {
		return r
	}
	return best
}

// Listed returns the access that lists of Protect leave to rel, and the rule; Write if they have no rule for it.
func (p *Policy) Listed(rel string) (Access, string) {
	if r := p.listed(nil, rel); r != nil {
		return r.access, r.text
	}
	return Write, ""
}

// Placed reports whether lists of Protect have rules for a name in some directories and not in others: a decision
// about it may be another one when a directory above it has moved.
func (p *Policy) Placed(name string) bool { return len(p.spec.Protect) > 0 && p.placed.has(Fold(name)) }

func decide(op Op, r *rule) Decision {
	if r == nil {
		return Decision{Access: Hide, Hidden: true, Kind: KindNothing, Rule: "no policy"}
	}
	return Decision{
		Allow:  r.access <= Hold || r.access == Read && !op.Mutates() || r.access == Seal && op <= OpStat,
		Hidden: r.access == Hide,
		Access: r.access,
		Kind:   r.kind,
		Rule:   r.text,
	}
}

// Move decides whether the directory rel, with everything below it, may be
// moved away, created by a move, or replaced. Move denies it if a rule may
// match a path below rel by the names of rel, without covering rel: the same
// file would then be under another rule at its new name. Rules like "**/name"
// match everywhere alike and do not prevent a move. "**/dir/name" prevents
// moves of and to directories with the name dir.
//
// If no rule but one of Hold prevents the move, the Decision has Access Hold: a copy is possible. If only rules of
// Protect prevent it, and hold nothing, it has Below: the directory may move if Listed is the same for each name
// below it at both places.
//
// If Move allows both names, and File allows OpRenameFrom and OpRename, every
// file below keeps its access. A rule as strict as the default counts too,
// because it may restrict what another rule allows. The root never moves.
func (p *Policy) Move(rel string) Decision {
	if p.fallback == nil {
		return decide(OpRename, nil)
	}
	if rel == "" {
		return Decision{Access: Read, Kind: KindRoot, Rule: "root of the view"}
	}
	across := func(r *rule) Decision {
		return Decision{Access: max(Hold, min(r.access, Read)), Kind: KindBelow, Rule: r.text}
	}
	for _, x := range []*ruleIndex{&p.rules, &p.asks} {
		if r := x.across(rel); r != nil {
			return across(r)
		}
	}
	if d, ok := p.spec.Git.move(rel); ok {
		return d
	}
	if r := p.listedBelow(rel); r != nil {
		d := across(r)
		d.Below = r.access != Hold
		return d
	}
	return Decision{Allow: true, Access: Write, Kind: KindAccess, Rule: p.fallback.text}
}

// listedBelow returns a rule of Protect that may match by the names of rel something below it, or nil.
func (p *Policy) listedBelow(rel string) *rule {
	if len(p.spec.Protect) == 0 {
		return nil
	}
	folded := Fold(rel)
	if r := p.protect.across(folded); r != nil || installedIn(rel) == inPackages {
		return r
	}
	return p.sources.across(folded)
}

// Alike reports whether lists of Protect and rules with Ask decide alike about what is below a directory at two paths, if File lets it
// move between them. Rules with Ask that match in every directory do not: approvals are for paths.
func (p *Policy) Alike(from, to string) bool {
	return !p.asks.anywhere() && (len(p.spec.Protect) == 0 ||
		p.listedBelow(from) == nil && p.listedBelow(to) == nil && installedIn(from) == installedIn(to))
}

// Linked is File for a regular file with nlink names. If File allows the
// operation, the hardlinks rule may still deny it.
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

// Link decides whether a symbolic link at rel with a text may lead to target. The host would write
// through such a link to what Protect and Git hold. A link at rel gives what is below
// target names below rel, so none stands where Protect has a rule below, and none out of installed packages leads to
// them.
func (p *Policy) Link(rel, text, target string) Decision {
	d := p.approved(OpOpenWrite, target)
	held := d.Access == Hold && !p.Held(rel)
	if d.Kind == KindProtect && (!d.Allow || held) {
		d.Allow = false
		return d
	}
	if r := p.listedBelow(rel); r != nil {
		return Decision{Access: Read, Kind: KindProtect, Rule: r.text}
	}
	if list := p.freed(); list != "" && leadsToPackages(rel, text, target) {
		return Decision{Access: Read, Kind: KindProtect, Rule: "protect " + list + ": a link to an installed package"}
	}
	if d, ok := p.spec.Git.link(rel, target); ok {
		return d
	}
	return Decision{Allow: true, Access: Write, Kind: KindAccess, Rule: p.fallback.text}
}

// freed returns the name of a list with Packages, or "".
func (p *Policy) freed() string {
	if i := slices.IndexFunc(p.spec.Protect, func(l Protect) bool { return l.Packages }); i >= 0 {
		return p.spec.Protect[i].Name
	}
	return ""
}
