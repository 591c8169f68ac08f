package amend

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/scope/protect"
)

// Kind is what a name names.
type Kind string

// The kinds.
const (
	Host   Kind = "host"
	Tool   Kind = "tool"
	Path   Kind = "path"
	Preset Kind = "preset"
)

// target is what a rule is about.
type target struct {
	kind Kind
	text string // for people
	rule
}

// rule is a kind of target.
type rule interface {
	allow(d *Draft, c Change) amended
	deny(d *Draft, c Change) (*frontmatter.Edit, func(*agents.Agent) scope.Decision, error)
}

// target reads a name. A name that could be of two kinds is an error, also if a file makes it so: an agent makes files.
func (d *Draft) target(c Change) (target, error) {
	readers := map[Kind]struct {
		may  func(string) bool // the name could be one
		read func(string) (rule, error)
	}{
		Host:   {isHost, func(name string) (rule, error) { return readHost(name) }},
		Tool:   {d.isTool, d.tool},
		Path:   {d.isPath, d.path},
		Preset: {d.isPreset, d.preset},
	}
	var kinds []Kind
	for _, kind := range []Kind{Host, Tool, Path, Preset} {
		if c.Kind == kind || c.Kind == "" && readers[kind].may(c.Name) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 1 {
		made, err := readers[kinds[0]].read(c.Name)
		if h, ok := made.(hostRule); ok && err == nil {
			_, err = h.items(c, d.presets())
		}
		return target{kinds[0], printable.Text(c.Name), made}, err
	}
	if kinds == nil {
		if like := d.tools.Like(c.Name); like != "" {
			return target{}, d.tools.NoTool(c.Name)
		}
		kinds = []Kind{Host, Path}
	}
	like := ""
	if name := nearest.Of(c.Name, slices.Collect(maps.Keys(d.presets()))); name != "" {
		like = ", or did you mean the preset " + name
	}
	var flags []string
	for _, kind := range kinds {
		name := c.Name
		if kind == Host {
			name, _, _ = strings.Cut(name, "/")
		}
		flags = append(flags, cmp.Or(printable.Command("--"+string(kind), unflagged(name)), "--"+string(kind)))
	}
	return target{}, fmt.Errorf("%q could be a %s: write %s%s", c.Name, join(kinds, " or a "), strings.Join(flags, ", or "), like)
}

func join(kinds []Kind, with string) string {
	var texts []string
	for _, kind := range kinds {
		texts = append(texts, string(kind))
	}
	return strings.Join(texts, with)
}

// isHost: a name with a dot, an address, localhost, or one of them with a port or in a URL.
func isHost(name string) bool {
	if strings.Contains(name, "://") {
		return true
	}
	first, _, _ := strings.Cut(name, "/") // github.com/x could be both
	h, err := readHost(first)
	if err != nil {
		return false
	}
	return h.port != 0 || h.name == "localhost" || strings.ContainsAny(h.name, ".:")
}

func (d *Draft) isTool(name string) bool {
	return strings.HasPrefix(name, catalog.MCPPrefix) || strings.HasPrefix(name, catalog.BuiltinPrefix) || d.tools.Named(name).Name != ""
}

func (d *Draft) isPath(name string) bool {
	if strings.Contains(name, "://") || strings.Contains(name, ":") && isHost(name) {
		return false
	}
	if strings.ContainsAny(name, "/*?[{") || strings.HasPrefix(name, ".") {
		return true
	}
	_, err := os.Lstat(filepath.Join(d.dir(), name))
	return err == nil
}

func (d *Draft) isPreset(name string) bool {
	return d.presets()[name] != nil
}

func (d *Draft) presets() map[string]*hosts.Preset {
	all, _ := hosts.Presets(d.base, d.user) // an error of a file is the definitions' to report
	return all
}

// dir returns the directory of the agent's view.
func (d *Draft) dir() string {
	if d.agent.Dir != "" {
		return d.agent.Dir
	}
	return filepath.Join(d.base, d.agent.Name.Dir())
}

// hostRule is a host, and a port other than those of rules without ports.
type hostRule struct {
	name string // as in a rule
	port uint16 // 0: 443 and 80
}

// readHost reads a host, HOST:PORT or a URL.
func readHost(text string) (h hostRule, err error) {
	name, port := text, ""
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			return h, fmt.Errorf("%q has no host: write the name of one, such as example.com", text)
		}
		if u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return h, fmt.Errorf("%q is a URL, and a rule is for all of a host: write %s", text, u.Host)
		}
		name, port = u.Hostname(), u.Port()
	} else if host, of, err := net.SplitHostPort(text); err == nil {
		name, port = host, of
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("%q has no port: write a number from 1 to 65535", text)
		}
		if n != 443 && n != 80 {
			h.port = uint16(n)
		}
	}
	if _, err := network.ParseHostPattern(name); err != nil {
		return h, err
	}
	if !strings.Contains(name, "*") {
		name, _ = network.ParseHost(name)
	}
	h.name = strings.ToLower(name)
	return h, nil
}

// item returns the host as an entry of network.
func (h hostRule) item() string {
	if h.port == 0 {
		return frontmatter.Quote(h.name)
	}
	return fmt.Sprintf("{host: %s, ports: [%d]}", frontmatter.Quote(h.name), h.port)
}

// ownAddress returns the address of a host that is this one, or an address that is not public: a rule without it would reach nothing.
func (h hostRule) ownAddress() netip.AddrPort {
	name := h.name
	if name == "localhost" {
		name = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(name); err == nil && (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast()) {
		return netip.AddrPortFrom(ip, 0)
	}
	return netip.AddrPort{}
}

// Own reports whether a host is this one, or an address that is not public: a rule for it names the address that it opens.
func Own(host string) bool {
	h, err := readHost(host)
	return err == nil && h.ownAddress().IsValid()
}

// items returns the host as entries of network.allow: one without methods and paths, or those of a preset's host, whose paths
// may stand below others, as those of a mirror do: the preset's own hosts get their rules.
func (h hostRule) items(c Change, presets map[string]*hosts.Preset) (items []string, err error) {
	if c.As == "" && !c.Address.IsValid() {
		return []string{h.item()}, nil
	}
	like, below := []network.HostRule{{}}, "/**"
	if c.As != "" {
		p := presets[c.As]
		switch {
		case p == nil:
			return nil, fmt.Errorf("there is no preset %q: scopefs presets lists them", c.As)
		case len(p.Credentials) > 0:
			return nil, fmt.Errorf("preset %s has a key, which would go to this host: write the host with a credential", c.As)
		}
		like = p.Allow
		if own := slices.DeleteFunc(slices.Clone(like), h.differs); len(own) > 0 {
			like, below = own, ""
		}
	}
	for _, r := range like {
		fields := []string{"host: " + frontmatter.Quote(h.name)}
		list := func(key string, all []string, before string) {
			for i, text := range all {
				all[i] = frontmatter.Quote(before + text)
			}
			if len(all) > 0 {
				fields = append(fields, key+": ["+strings.Join(all, ", ")+"]")
			}
		}
		if h.port != 0 {
			fields = append(fields, fmt.Sprintf("ports: [%d]", h.port))
		}
		list("methods", slices.Clone(r.Methods), "")
		list("paths", slices.Clone(r.Paths), below)
		switch {
		case c.Address.IsValid() && c.Address.Port() == 0:
			fields = append(fields, "address: "+frontmatter.Quote(c.Address.Addr().String()))
		case c.Address.IsValid():
			fields = append(fields, "address: "+frontmatter.Quote(c.Address.String()))
		}
		if item := "{" + strings.Join(fields, ", ") + "}"; !slices.Contains(items, item) {
			items = append(items, item)
		}
	}
	return items, nil
}

// connector decides about connections.
type connector interface {
	Connect(host string, port uint16) (scope.Decision, network.Route)
}

// at reports whether the rules connect a host to an address.
func (d *Draft) at(host string, address netip.AddrPort) bool {
	h, err := readHost(host)
	if err != nil {
		return false
	}
	_, route := d.agent.Grants.Hosts().Connect(h.name, cmp.Or(h.port, 443))
	return route.Address == address
}

// any reports whether a decision about one of the host's ports is as f says, and returns the decision, or that about
// the last port. For a pattern it takes a name that no narrower rule has.
func (h hostRule) any(n connector, f func(scope.Decision) bool) (d scope.Decision, ok bool) {
	ports := []uint16{h.port}
	if h.port == 0 {
		ports = []uint16{80, 443}
	}
	for _, port := range ports {
		if d, _ = n.Connect(strings.Replace(h.name, "*", "any-of-these", 1), port); f(d) {
			return d, true
		}
	}
	return d, false
}

// allowed returns the decision of rules about all ports.
func (h hostRule) allowed(a *agents.Agent) scope.Decision {
	d, _ := h.any(a.Grants.Hosts(), func(d scope.Decision) bool { return !d.Allow })
	return d
}

// denied returns the decision of network.deny.
func (h hostRule) denied(a *agents.Agent) scope.Decision {
	n, err := network.Compile(network.Spec{Deny: a.Network.Rules.Deny, Others: true})
	if err != nil {
		return scope.Decision{}
	}
	d, _ := h.any(n, func(d scope.Decision) bool { return d.Ask })
	return d
}

func (h hostRule) differs(r network.HostRule) bool { return !strings.EqualFold(r.Host, h.name) }

// preset returns the preset of the definition that has the rules of the host; "": there is none, or network.allow has them.
func (h hostRule) preset(d *Draft) string {
	same := func(r network.HostRule) bool { return !h.differs(r) }
	for _, name := range d.agent.Network.Presets {
		if p := d.presets()[name]; p != nil && slices.ContainsFunc(p.Allow, same) && !slices.ContainsFunc(d.agent.Network.Rules.Allow, same) {
			return name
		}
	}
	return ""
}

func (h hostRule) allow(d *Draft, c Change) amended {
	rules := d.agent.Network.Rules
	presets := d.presets()
	a := amended{decide: h.allowed}
	items, _ := h.items(c, presets) // see target
	a.add = func() (edits []frontmatter.Edit) {
		for _, item := range items {
			edits = append(edits, frontmatter.Edit{Keys: []string{"network", "allow"}, Add: item})
		}
		return edits
	}
	if name := h.preset(d); name != "" && h.port != 0 {
		a.err = fmt.Errorf("its rules are those of preset %s, which a rule of the definition would replace", name)
	}
	var denied, asked []int
	asks := func(d scope.Decision) bool { return d.Ask }
	for i, r := range rules.Deny {
		n, err := network.Compile(network.Spec{Deny: []network.HostRule{r}, Others: true})
		if err == nil {
			if _, denies := h.any(n, func(d scope.Decision) bool { return !d.Ask }); denies {
				denied, a.inWay = append(denied, i), append(a.inWay, "network.deny: "+r.Host)
			}
		}
	}
	for i, r := range rules.Ask {
		n, err := network.Compile(network.Spec{Ask: []network.HostRule{r}})
		if err == nil {
			if _, covers := h.any(n, asks); covers {
				asked = append(asked, i)
				if !strings.EqualFold(r.Host, h.name) {
					a.inWay = append(a.inWay, "network.ask: "+r.Host)
				}
			}
		}
	}
	a.remove = append(removals([]string{"network", "deny"}, denied), removals([]string{"network", "ask"}, asked)...)
	return a
}

// deny adds a rule: a host that no rule allows may be one of a preset later.
func (h hostRule) deny(d *Draft, _ Change) (*frontmatter.Edit, func(*agents.Agent) scope.Decision, error) {
	if d.agent.Network.Kind == hosts.HostNetwork {
		return nil, nil, fmt.Errorf("network: host has no rules: write network: {allow: [\"*\"]} in %s first", d.File)
	}
	return &frontmatter.Edit{Keys: []string{"network", "deny"}, Add: h.item()}, h.denied, nil
}

// presetRule is a list of hosts.
type presetRule string

func (d *Draft) preset(name string) (rule, error) {
	if !d.isPreset(name) {
		return nil, fmt.Errorf("no preset %q: scopefs presets lists them", name)
	}
	return presetRule(name), nil
}

func (p presetRule) allow(*Draft, Change) amended {
	return amended{
		decide: func(a *agents.Agent) scope.Decision {
			switch {
			case a.Network.Kind == hosts.HostNetwork:
				return scope.Decision{Allow: true, Rule: "network: host"}
			case slices.Contains(a.Network.Presets, string(p)):
				return scope.Decision{Allow: true, Rule: "network.presets: " + string(p)}
			}
			return scope.Decision{}
		},
		add: func() []frontmatter.Edit {
			return []frontmatter.Edit{{Keys: []string{"network", "presets"}, Add: frontmatter.Quote(string(p))}}
		},
	}
}

func (p presetRule) deny(d *Draft, _ Change) (*frontmatter.Edit, func(*agents.Agent) scope.Decision, error) {
	takesOut := ""
	if all := d.agent.Network.Presets; slices.Contains(all, string(p)) {
		rest := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == string(p) })
		takesOut = fmt.Sprintf("scopefs set network.presets '[%s]' takes it out, or ", strings.Join(rest, ", "))
	}
	return nil, nil, fmt.Errorf("%s is a preset: %sdeny its hosts (scopefs presets show %s)", p, takesOut, p)
}

// toolRule is a tool.
type toolRule struct {
	text string
	name catalog.ToolName
}

func (d *Draft) tool(name string) (rule, error) {
	pattern, err := d.tools.ParsePattern(name)
	if err != nil {
		return nil, fmt.Errorf("%q %w", name, err)
	}
	n, ok := d.tools.ParseName(name)
	servers := make([]string, 0)
	for server := range d.agent.Grants.Servers() {
		servers = append(servers, server)
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is a pattern: write the name of a tool", name)
	case d.tools.Known(pattern, servers):
		return toolRule{name, n}, nil
	case n.Server != "":
		return nil, fmt.Errorf("%q: the agent has no server %s: define it in mcp_servers", name, n.Server)
	}
	return nil, d.tools.NoTool(name)
}

func (t toolRule) decide(a *agents.Agent) scope.Decision { return a.Grants.Tool(t.text) }

func (t toolRule) allow(d *Draft, _ Change) amended {
	rules := d.agent.Rules
	a := amended{decide: t.decide}
	var denied, asked []int
	for i, p := range d.tools.Patterns(rules.Exclude) {
		if p.Reaches(d.tools, t.name) && (!p.All || len(rules.Allowed) == 0) {
			denied = append(denied, i)
			a.inWay = append(a.inWay, "policy.tools.exclude: "+p.Text)
		}
	}
	for i, p := range d.tools.Patterns(rules.Ask) {
		if !p.Reaches(d.tools, t.name) {
			continue
		}
		asked = append(asked, i)
		if p.All || p.Server != t.name.Server || p.Name != t.name.Name {
			a.inWay = append(a.inWay, "policy.tools.ask: "+p.Text)
		}
	}
	a.remove = append(removals([]string{"policy", "tools", "exclude"}, denied), removals([]string{"policy", "tools", "ask"}, asked)...)
	a.add = func() (edits []frontmatter.Edit) {
		for _, l := range []struct {
			keys []string
			list []string
		}{{[]string{"tools"}, d.agent.Tools}, {[]string{"policy", "tools", "allowed"}, d.agent.Rules.Allowed}} {
			holds := func(p catalog.Pattern) bool { return p.Match(t.name) }
			if l.list != nil && !slices.ContainsFunc(d.tools.Patterns(l.list), holds) {
				edits = append(edits, frontmatter.Edit{Keys: l.keys, Add: frontmatter.Quote(t.text)})
			}
		}
		return edits
	}
	return a
}

func (t toolRule) deny(*Draft, Change) (*frontmatter.Edit, func(*agents.Agent) scope.Decision, error) {
	return &frontmatter.Edit{Keys: []string{"policy", "tools", "exclude"}, Add: frontmatter.Quote(t.text)}, t.decide, nil
}

// pathRule is a path or a pattern of paths.
type pathRule struct {
	rel     string // a path that the pattern matches
	pattern string
}

// outside returns the error for a path of the host that is not in the agent's directory.
func (d *Draft) outside(name string) error {
	for _, r := range d.agent.View.Roots {
		access := fmt.Sprintf("with access: %v", r.Access)
		if r.Worktree != "" {
			access = "where git's rules for a linked worktree hold"
		}
		if name == r.Dir || strings.HasPrefix(name, r.Dir+"/") {
			return fmt.Errorf("%q is in the root %s, %s: edit access or paths of it in view: {roots} of %s", name, r.Dir, access, d.File)
		}
	}
	dir := name
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		dir = filepath.Dir(name)
	}
	return fmt.Errorf("%q is not in the view of %s: %s shows it to one run, and view: {roots: [{dir: %s}]} in %s to all", name, d.dir(),
		cmp.Or(printable.Command("scopefs", "run", "--with", dir), "scopefs run --with DIR"), dir, d.File)
}

// path reads a path of the view: relative to it, below /workspace, or below the agent's directory on the host.
func (d *Draft) path(name string) (rule, error) {
	rel := name
	if path.IsAbs(name) {
		below := func(dir string) bool {
			var ok bool
			rel, ok = strings.CutPrefix(path.Clean(name), dir+"/")
			return ok
		}
		if path.Clean(name) == "/workspace" || path.Clean(name) == d.dir() {
			return nil, errors.New("the whole view: set view: {access} in " + d.File)
		}
		if !below("/workspace") && !below(d.dir()) {
			return nil, d.outside(name)
		}
	}
	rel = path.Clean(rel)
	switch {
	case rel == ".":
		return nil, errors.New("the whole view: set view: {access} in " + d.File)
	case rel == ".." || strings.HasPrefix(rel, "../"):
		return nil, d.outside(filepath.Join(d.dir(), name))
	case !utf8.ValidString(rel):
		return nil, fmt.Errorf("%q is not UTF-8: write a pattern, with ? for each such byte", name)
	}
	if err := (scope.PathRule{Pattern: rel}).Check(); err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	// An agent makes files: one must not turn the operator's pattern into its own name.
	quoted := scope.QuotePattern(rel)
	if _, err := os.Lstat(filepath.Join(d.dir(), rel)); err == nil && quoted != rel {
		return nil, fmt.Errorf("%q is a pattern, and a file has this name: write %s for the file, or edit %s", name,
			cmp.Or(printable.Command(unflagged(quoted)), "it with backslashes"), d.File)
	}
	matched := rel
	if literal, ok := scope.UnquotePattern(rel); ok {
		matched = literal
	}
	return pathRule{matched, rel}, nil
}

// decide decides whether a policy gives the path an access, at least.
func (p pathRule) decide(want scope.Access, spec scope.PolicySpec) scope.Decision {
	policy, err := scope.Compile(spec)
	if err != nil {
		return scope.Decision{}
	}
	ops := []scope.Op{scope.OpOpen}
	if want == scope.Write {
		ops = []scope.Op{scope.OpOpen, scope.OpOpenWrite, scope.OpCreate}
	}
	var d scope.Decision
	for _, op := range ops {
		d = policy.File(op, p.rel)
		if d.Allow && want == scope.Write && policy.Held(p.rel) {
			d.Allow = false
		}
		if !d.Allow {
			d.Remedy = policy.Remedy(op, p.rel)
			break
		}
	}
	return d
}

func (p pathRule) allow(d *Draft, c Change) amended {
	want := c.Access
	a := amended{decide: func(agent *agents.Agent) scope.Decision { return p.decide(want, agent.View.PolicySpec()) }}
	set := []frontmatter.Edit{{Keys: []string{"view", "paths", p.pattern}, Set: want.String()}}
	for _, r := range d.agent.View.Paths {
		if r.Access <= want || p.decide(want, scope.PolicySpec{Paths: []scope.PathRule{r}}).Allow {
			continue
		}
		if r.Name != "" {
			a.inWay = append(a.inWay, fmt.Sprintf("view.%s: %s", r.Name, r.Access))
			a.remove = append(a.remove, frontmatter.Edit{Keys: []string{"view", r.Name}})
			for _, other := range d.agent.View.Paths { // what else the name stands for stays
				if other.Name == r.Name && other.Pattern != r.Pattern {
					a.remove = append(a.remove, frontmatter.Edit{Keys: []string{"view", "paths", other.Pattern}, Set: other.Access.String()})
				}
			}
			continue
		}
		a.inWay = append(a.inWay, fmt.Sprintf("view.paths: %s: %s", r.Pattern, r.Access))
		if want == scope.Read && r.Pattern == p.pattern {
			a.remove = append(a.remove, set...)
		} else {
			a.remove = append(a.remove, frontmatter.Edit{Keys: []string{"view", "paths", r.Pattern}})
		}
	}
	if names := p.protected(d.agent.View.PolicySpec()); want == scope.Write && names != nil {
		a.inWay = append(a.inWay, "protect: "+strings.Join(names, ", "))
		a.remove = append(a.remove, d.unprotect(names)...)
	}
	a.add = func() []frontmatter.Edit { return set }
	// The removal of a rule that hides must not let the agent write.
	a.also = want == scope.Read
	return a
}

// Protecting returns the lists of protect that have a path.
func Protecting(spec scope.PolicySpec, rel string) []string {
	return pathRule{rel: rel}.protected(spec)
}

func (p pathRule) protected(spec scope.PolicySpec) (names []string) {
	alone := map[string]scope.PolicySpec{}
	for _, list := range spec.Protect {
		alone[list.Name] = scope.PolicySpec{Protect: append(alone[list.Name].Protect, list)}
	}
	if spec.Git != nil {
		alone["git-hooks"] = scope.PolicySpec{Git: &scope.GitRules{Hooks: spec.Git.Hooks}}
		alone["git-config"] = scope.PolicySpec{Git: &scope.GitRules{Config: spec.Git.Config}}
	}
	for _, name := range slices.Sorted(maps.Keys(alone)) {
		if !p.decide(scope.Write, alone[name]).Allow {
			names = append(names, name)
		}
	}
	return names
}

// unprotect returns edits that remove lists from protect. "*" becomes the other lists.
func (d *Draft) unprotect(names []string) (edits []frontmatter.Edit) {
	front, _, err := frontmatter.Cut(d.after)
	if err != nil {
		return nil
	}
	top, err := frontmatter.Parse(front)
	if err != nil || top == nil {
		return nil
	}
	keys, list := []string{"protect"}, frontmatter.Value(top, "protect")
	if list != nil && list.Kind == frontmatter.Mapping {
		keys, list = []string{"protect", "lists"}, frontmatter.Value(list, "lists")
	}
	var written []string
	if list != nil {
		for _, item := range list.Content {
			written = append(written, item.Value)
		}
	}
	if list == nil || slices.Contains(written, catalog.Everything) {
		own, _, _ := protect.Read(d.base, d.user, nil)
		all := slices.Collect(maps.Keys(own))
		for _, p := range protect.Builtin() {
			all = append(all, p.Name)
		}
		names = append(slices.Clone(names), catalog.Everything)
		slices.Sort(all)
		for _, name := range all {
			if !slices.Contains(names, name) && !slices.Contains(written, name) {
				edits = append(edits, frontmatter.Edit{Keys: keys, Add: frontmatter.Quote(name)})
			}
		}
	}
	var indexes []int
	for i, name := range written {
		if slices.Contains(names, name) {
			indexes = append(indexes, i)
		}
	}
	return append(edits, removals(keys, indexes)...)
}

func (p pathRule) deny(d *Draft, c Change) (*frontmatter.Edit, func(*agents.Agent) scope.Decision, error) {
	less := scope.Read // the access that the rule takes away
	if c.Access == scope.Read {
		less = scope.Write
	}
	decide := func(a *agents.Agent) scope.Decision { return p.decide(less, a.View.PolicySpec()) }
	return &frontmatter.Edit{Keys: []string{"view", "paths", p.pattern}, Set: c.Access.String()}, decide, nil
}

// Command returns the command that allows something, with more words, and all that it allows; "" if there is none that allows it
// alone. name is one that an agent may have chosen, and no pattern. The command is the operator's: what an agent reads says "ask
// your operator" before one.
func Command(p config.Paths, known *definitions.Set, id scope.ID, kind Kind, name string, more ...string) (string, []excess.Excess) {
	d, err := open(p, known, id)
	switch {
	case err != nil:
		return "", nil
	case kind == Path:
		name = scope.QuotePattern(name)
	case catalog.IsWild(name): // these have no escape
		return "", nil
	}
	if kind == Host {
		if preset := narrower(p, known, id, name); preset != "" {
			kind, name = Preset, preset
		}
	}
	words := []string{"scopefs", "allow"}
	if t, err := d.target(Change{Name: name}); err != nil || t.kind != kind {
		words = append(words, "--"+string(kind))
	}
	words = append(words, unflagged(name))
	_, err = d.Allow(Change{Name: name, Kind: kind})
	if _, denied := errors.AsType[*ObstacleError](err); denied {
		words = append(words, "--remove-deny")
		_, err = d.Allow(Change{Name: name, Kind: kind, RemoveDeny: true})
	}
	if before, after := d.Changes(); err != nil || string(before) == string(after) {
		return "", nil
	}
	return printable.Command(append(words, more...)...), d.Widens()
}

// narrower returns the narrowest preset that makes the rules allow a host; "": there is none.
func narrower(p config.Paths, known *definitions.Set, id scope.ID, host string) string {
	d, err := open(p, known, id)
	if err != nil {
		return ""
	}
	h, err := readHost(host)
	if err != nil {
		return ""
	}
	all := d.presets()
	preset := hosts.Narrowest(all, h.name, cmp.Or(h.port, 443))
	if preset == "" {
		return ""
	}
	if _, err := d.Allow(Change{Name: preset, Kind: Preset}); err != nil || !h.allowed(d.agent).Allow {
		return ""
	}
	return preset
}

// unflagged returns a name as a word that is no flag.
func unflagged(name string) string {
	if strings.HasPrefix(name, "-") {
		return "./" + name
	}
	return name
}
