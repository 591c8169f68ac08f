package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/widening"
)

// Agent is what an agent may do, and by which rules.
type Agent struct {
	Agent       scope.ID         `json:"agent"`
	DisplayName string           `json:"display_name,omitempty"`
	Description string           `json:"description,omitempty"`
	Definition  string           `json:"definition"` // the path of its file
	Model       modelShown       `json:"model,omitzero"`
	Primary     bool             `json:"primary,omitempty"`
	View        scope.PolicySpec `json:"view"`
	Roots       []rootShown      `json:"roots,omitempty"`
	Tools       []string         `json:"tools"`    // patterns; null: any
	Computed    bool             `json:"computed"` // tools are computed from the other lists
	Builtins    []toolVerdict    `json:"builtin_tools"`
	Skills      []string         `json:"skills"`
	Servers     []serverShown    `json:"mcp_servers"`
	Members     []scope.ID       `json:"members"`
	Wider       []string         `json:"members_wider,omitempty"` // what members with may: widen do for the agent, and it may not
	Network     string           `json:"network"`                 // none, rules or host
	Hosts       []string         `json:"network_hosts"`           // of the rules
	Ports       []string         `json:"network_ports,omitempty"` // that lead over the border of the sandbox, in words
	Home        homeShown        `json:"home"`
	Devices     []string         `json:"devices,omitempty"`    // of the host
	Keys        []string         `json:"ssh_keys,omitempty"`   // fingerprints, with their use
	Variables   []string         `json:"env"`                  // names of variables
	Stores      []string         `json:"stores"`               // names of shared stores and services
	Contexts    []string         `json:"scopes"`               // patterns; null: any
	AskContexts []string         `json:"scopes_ask,omitempty"` // patterns of those that need an approval
	Fixed       bool             `json:"scopes_const,omitempty"`
	Rates       []string         `json:"rate_limits"`
	Filters     map[string]int   `json:"argument_filters"`     // how many expressions, by pattern
	Settings    []settingShown   `json:"settings"`             // what is set for all agents, and the lists that the definition names
	Repository  []string         `json:"repository,omitempty"` // keys that the trusted .scopefs.yaml sets as well
	Beyond      []string         `json:"beyond,omitempty"`     // what that file allows and the definition alone does not
	Version     string           `json:"version"`
}

// rootShown is a directory beside the agent's own.
type rootShown struct {
	Dir      string           `json:"dir"`
	Access   scope.Access     `json:"access"`
	Paths    []scope.PathRule `json:"paths,omitempty"`
	Changes  agents.Changes   `json:"changes,omitempty"`
	Worktree string           `json:"worktree,omitempty"` // Dir is the repository of this linked worktree, the agent's directory
}

func rootsOf(def *agents.Definition) (all []rootShown) {
	for _, r := range def.View.Roots {
		shown := rootShown{r.Dir, r.Access, r.Paths, agents.RootOfAgent(def, r).View.Changes, r.Worktree}
		if r.Worktree != "" {
			shown.Access = scope.Read // but what git changes
		}
		all = append(all, shown)
	}
	return all
}

func (r rootShown) String() string {
	text := r.Access.String()
	if r.Worktree != "" {
		text += ", and what git writes in the worktree " + r.Worktree
	}
	for _, rule := range r.Paths {
		text += fmt.Sprintf(", %s: %v", rule.Pattern, rule.Access)
	}
	return fmt.Sprintf("%s: %s, changes: %s", r.Dir, text, cmp.Or(r.Changes, "direct"))
}

// modelShown is what the definition says of the agent's model.
type modelShown struct {
	Kind        string   `json:"kind,omitempty"`
	Name        string   `json:"name,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	MaxTurns    int      `json:"max_turns,omitempty"`
	Timeout     string   `json:"timeout,omitempty"`
}

func (m modelShown) String() string {
	var parts []string
	add := func(label string, v any, said bool) {
		if said {
			parts = append(parts, strings.TrimSpace(fmt.Sprint(label, " ", v)))
		}
	}
	add("", m.Name, m.Name != "")
	add("kind", m.Kind, m.Kind != "")
	if m.Temperature != nil {
		add("temperature", *m.Temperature, true)
	}
	add("max_turns", m.MaxTurns, m.MaxTurns > 0)
	add("timeout", m.Timeout, m.Timeout != "")
	return strings.Join(parts, ", ")
}

// toolVerdict is the decision about one tool.
type toolVerdict struct {
	Tool    string `json:"tool"`
	Verdict string `json:"verdict"` // allow, ask or deny
	Rule    string `json:"rule"`
	From    string `json:"from,omitempty"` // .scopefs.yaml, if the definition alone decides otherwise
}

// homeShown is the HOME of an agent's sandboxes.
type homeShown struct {
	Kind    agents.Home   `json:"kind"`
	Caches  []agents.Kept `json:"caches"`
	Path    string        `json:"path,omitempty"`     // of what outlives the sandboxes
	Bytes   int64         `json:"bytes"`              // on the disk
	AtLeast bool          `json:"at_least,omitempty"` // there are too many files to count
}

// serverShown is a server without its secrets.
type serverShown struct {
	Name    string `json:"name"`
	From    string `json:"from"`
	Private bool   `json:"private"`
}

// settingShown is where a key of scopefs.yaml is set, or where a list is.
type settingShown struct {
	Key  string `json:"key"`            // such as sandbox.expose, presets.npm or protect.editor
	From string `json:"from"`           // built-in, user, project or base
	File string `json:"file,omitempty"` // absolute
	Line int    `json:"line,omitempty"`
}

// settingsOf returns where the settings of an agent are from.
func settingsOf(agent *agents.Agent, host config.Settings, p config.Paths) []settingShown {
	all := []settingShown{}
	add := func(key, file string, line int) {
		s := settingShown{Key: key, From: p.Layer(file), File: file, Line: line}
		if file != "" && !filepath.IsAbs(file) {
			s.File = filepath.Join(p.Base, file)
		}
		all = append(all, s)
	}
	for _, key := range slices.Sorted(maps.Keys(host.From)) {
		add(key, host.From[key].File, host.From[key].Line)
	}
	for _, s := range agent.Sources() {
		add(s.Key, s.File, 0)
	}
	return all
}

func (s settingShown) String() string {
	text := s.Key + ": " + s.From
	if s.File != "" {
		text += " " + s.File
	}
	if s.Line > 0 {
		text += fmt.Sprint(":", s.Line)
	}
	return text
}

// ShowAgent returns what a defined agent may do.
func ShowAgent(p config.Paths, known *definitions.Set, id scope.ID) (*Agent, error) {
	agent, err := known.Agent(id)
	if err != nil {
		return nil, err
	}
	host := known.Host
	s := show(agent)
	s.Definition = agent.Path(p.Base)
	for _, member := range agent.Grants.Members() {
		if of := known.All.Agents[member]; of != nil && agent.Grants.Widens(member) {
			now := *agent.Definition // of a task, whose files are the agent's
			now.Reach, now.Limits, now.Env = of.Reach, of.Limits, of.Env
			for _, e := range widening.Of(&agents.Agent{Definition: &now, Grants: of.Grants}, agent) {
				s.Wider = append(s.Wider, fmt.Sprintf("%s: %s", member, e))
			}
		}
	}
	if own := known.All.Own(id); own != nil && len(agent.Repository) > 0 {
		for _, e := range widening.Of(agent, own) {
			s.Beyond = append(s.Beyond, e.String())
		}
		for i := range s.Builtins {
			v := &s.Builtins[i]
			if alone := own.Grants.Tool(v.Tool); verdictOf(alone) != v.Verdict {
				v.From = agents.RepositoryFile
			}
		}
	}
	s.Stores, s.Home, s.Settings = storesOf(agent, host, p), homeOf(agent, host, p), settingsOf(agent, host, p)
	return s, nil
}

// storesOf returns the names of the shared stores and services that an agent reaches.
func storesOf(agent *agents.Agent, host config.Settings, p config.Paths) []string {
	s := stores.New(host.Stores, p.State, stores.Host{})
	defer s.Close()
	return s.Of(agent)
}

// homeOf returns the HOME of an agent's sandboxes, and what it takes on the disk.
func homeOf(def *agents.Agent, host config.Settings, p config.Paths) homeShown {
	keep := def.Keep.Or(host.Keep)
	h := homeShown{Kind: keep.Home, Caches: some(keep.Caches)}
	if size, whole, err := account.HomeUse(p, def.Name); err == nil {
		h.Path, h.Bytes, h.AtLeast = p.Home(def.Name), size, !whole
	}
	return h
}

func (h homeShown) String() string {
	text := string(h.Kind)
	if len(h.Caches) > 0 {
		text += ", caches of " + names(h.Caches)
	}
	if h.Path != "" {
		text += fmt.Sprintf(" (%s: %s%.1f MiB)", h.Path, said(h.AtLeast, "more than "), float64(h.Bytes)/(1<<20))
	}
	return text
}

func show(agent *agents.Agent) *Agent {
	g := agent.Grants
	s := &Agent{
		Agent: agent.Name, DisplayName: agent.DisplayName, Description: agent.Description, Primary: g.Primary(), View: agent.View.PolicySpec(),
		Tools: g.Tools(), Computed: g.Computed(), Skills: some(g.Skills()), Members: some(g.Members()),
		Servers: []serverShown{}, Rates: []string{}, Filters: map[string]int{}, Version: g.Version(), Repository: agent.Repository,
	}
	s.Roots = rootsOf(agent.Definition)
	m := agent.Model
	s.Model = modelShown{Kind: m.Kind, Name: m.Name, Temperature: m.Temperature, MaxTurns: m.MaxTurns}
	if m.Timeout > 0 {
		s.Model.Timeout = m.Timeout.String()
	}
	s.Contexts, s.Fixed = g.Contexts()
	s.AskContexts = agent.Contexts.Ask
	s.Devices = agent.Devices
	for _, key := range slices.Sorted(maps.Keys(agent.SSHKeys)) {
		s.Keys = append(s.Keys, fmt.Sprintf("%s (%s)", key, agent.SSHKeys[key]))
	}
	s.Variables = some(slices.Sorted(maps.Keys(agent.Env)))
	s.Network, s.Hosts, s.Ports = string(g.Hosts().Kind()), some(g.Hosts().Names()), g.Hosts().PortNames()
	for _, tool := range g.ToolNames() {
		d := g.Tool(tool)
		s.Builtins = append(s.Builtins, toolVerdict{Tool: tool, Verdict: verdictOf(d), Rule: d.Rule})
	}
	servers := g.Servers()
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s.Servers = append(s.Servers, serverShown{name, servers[name].From, servers[name].Private})
	}
	for _, r := range g.Rates() {
		s.Rates = append(s.Rates, r.String())
	}
	for _, f := range g.Filters() {
		s.Filters[f.Pattern] = len(f.Regexps)
	}
	return s
}

// said returns a word that is to be there; else "".
func said(there bool, word string) string {
	if there {
		return word
	}
	return ""
}

// Print prints a line for each part.
func (s *Agent) Print(out io.Writer) error {
	var table Table
	line := func(label, format string, v ...any) {
		table.Row(label, fmt.Sprintf(format, v...))
	}
	line("agent", "%s", s.Agent)
	for _, row := range [][2]string{
		{"name", s.DisplayName}, {"description", s.Description}, {"definition", s.Definition}, {"model", s.Model.String()},
	} {
		if row[1] != "" {
			line(row[0], "%s", row[1])
		}
	}
	if len(s.Repository) > 0 {
		line("from "+agents.RepositoryFile, "%s", names(s.Repository))
	}
	for i, text := range s.Beyond {
		line(said(i == 0, "beyond yours"), "%s", text)
	}
	if s.Primary {
		line("primary", "its lists do not restrict it")
	}
	line("view", "%v", s.View.Access)
	for _, r := range agents.Distinct(s.View.Paths) {
		line("", "%s: %v", r.Pattern, r.Access)
	}
	for _, list := range s.View.Protect {
		line("", "protect %s: %s", list.Name, said(list.Hold, "hold")+said(!list.Hold, "read")+said(list.Packages, ", not in installed packages"))
	}
	for i, r := range s.Roots {
		line(said(i == 0, "roots"), "%s", r)
	}
	patterns := func(label string, list []string, how string) {
		if list == nil {
			line(label, "any")
			return
		}
		line(label, "%s%s", names(list), how)
	}
	patterns("tools", s.Tools, said(s.Computed, " (computed)"))
	for _, v := range s.Builtins {
		line("", "%-5s  %-12s  %s", v.Verdict, v.Tool, v.Rule+said(v.From != "", " ("+v.From+")"))
	}
	line("skills", "%s", names(s.Skills))
	var servers []string
	for _, server := range s.Servers {
		servers = append(servers, fmt.Sprintf("%s (%s)", server.Name, server.From))
	}
	line("mcp servers", "%s", names(servers))
	line("members", "%s", names(s.Members))
	for _, text := range s.Wider {
		line("", "may more: %s", text)
	}
	if len(s.Hosts) > 0 {
		line("network", "%s", names(s.Hosts))
	} else {
		line("network", "%s", s.Network)
	}
	for _, text := range s.Ports {
		line("", "%s", text)
	}
	line("home", "%s", s.Home)
	if len(s.Devices) > 0 {
		line("devices", "%s", names(s.Devices))
	}
	if len(s.Keys) > 0 {
		line("ssh keys", "%s", names(s.Keys))
	}
	line("env", "%s", names(s.Variables))
	line("stores", "%s", names(s.Stores))
	if s.Contexts != nil { // else calls see what their declarations say, and others nothing
		patterns("scopes", s.Contexts, said(s.Fixed, " (const)"))
	}
	if s.AskContexts != nil {
		line("", "ask for %s", names(s.AskContexts))
	}
	line("rate limits", "%s", names(s.Rates))
	var filters []string
	for _, pattern := range slices.Sorted(maps.Keys(s.Filters)) {
		filters = append(filters, fmt.Sprintf("%s: %d", pattern, s.Filters[pattern]))
	}
	line("argument filters", "%s", names(filters))
	for i, set := range s.Settings {
		line(said(i == 0, "settings"), "%s", set)
	}
	line("version", "%s", s.Version)
	return table.Print(out)
}
