package imports

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/header"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// server is an MCP server of one agent.
type server struct {
	name, command, cwd string
	args               []string
	env                []variable
	url                string // of a server that scopefs does not start
	headers            []variable
	timeout            string   // limit of a call
	include, exclude   []string // tools; a nil include means every tool
}

type variable struct{ name, value string }

func (v variable) node() (name string, n *yaml.Node) { return v.name, text(v.value) }

// addServer reads a server of gemini-cli or Claude Code, which has a command or an address. It leaves out a server
// whose address is not for streamable HTTP.
func (d *draft) addServer(name string, n *yaml.Node) error {
	s := &server{name: name}
	d.named = append(d.named, name)
	at := "mcpServers." + name
	var transport, address, stream string
	var tcp, off bool
	f := fields{
		"command":     textField(&s.command),
		"cwd":         textField(&s.cwd),
		"args":        listField(&s.args),
		"env":         func(v *yaml.Node) error { return d.readEnv(at+".env", s, v) },
		"type":        textField(&transport),
		"url":         textField(&address),
		"headers":     func(v *yaml.Node) error { return d.readHeaders(at+".headers", s, v) },
		"tcp":         func(*yaml.Node) error { tcp = true; return nil },
		"timeout":     func(v *yaml.Node) error { d.readTimeout(at+".timeout", s, v); return nil },
		"disabled":    into(&off, boolOf),
		"trust":       d.trustField(name, at),
		"description": func(*yaml.Node) error { return nil },
	}
	f["httpUrl"], f["includeTools"], f["excludeTools"] = textField(&stream), listField(&s.include), listField(&s.exclude)
	f["http_url"], f["include_tools"], f["exclude_tools"] = f["httpUrl"], f["includeTools"], f["excludeTools"]
	if err := f.readFor(d, at+".", n, cover(name, "*")); err != nil {
		return err
	}
	why := ""
	switch {
	case off:
		why = "it is disabled"
	case !catalog.IsServerName(name):
		why = "its name would be a pattern"
	case tcp:
		why = "scopefs speaks MCP by streamable HTTP or to a command, not by TCP"
	default:
		why = d.setAddress(at, s, transport, address, stream)
	}
	if why == "" {
		d.variables(at, s, false)
		why = d.confineAddress(at, s)
	}
	if why != "" {
		d.gone = append(d.gone, name)
		d.lose(at, why, "left out")
		return nil
	}
	d.excludeTools(s)
	d.servers = append(d.servers, s)
	return nil
}

// setAddress sets the server's address, if it has one. It returns why the server has neither a command nor a usable
// address.
func (d *draft) setAddress(at string, s *server, transport, address, stream string) (why string) {
	far := address != "" || stream != ""
	switch {
	case far && s.command != "":
		return "it has a command and an address"
	case transport == "sse" || transport == "ws":
		return fmt.Sprintf("scopefs speaks streamable HTTP, not %s", transport)
	case far && stream == "" && transport == "" && !d.gemini:
		return "it has a url without type: http"
	case transport != "" && far != slices.Contains([]string{"http", "streamable-http"}, transport), !far && s.command == "":
		return "it has neither a command nor the address of a streamable HTTP server"
	case stream != "" && address != "":
		d.lose(at+".url", "the server has an httpUrl", "left out")
	case far && transport == "" && stream == "":
		d.lose(at+".url", "gemini-cli may speak SSE to it", "scopefs speaks streamable HTTP")
	}
	s.url = d.bracedVariables(cmp.Or(stream, address))
	return ""
}

// confineAddress removes the settings that a server with an address, or one with a command, cannot have. It returns
// why scopefs could not load the server.
func (d *draft) confineAddress(at string, s *server) (why string) {
	if s.url == "" {
		if len(s.headers) > 0 {
			d.lose(at+".headers", "they are for a server with an address", "left out")
			s.headers = nil
		}
		return ""
	}
	if len(s.args) > 0 || len(s.env) > 0 || s.cwd != "" {
		d.lose(at, "args, env and cwd are for a server that is started", "left out")
	}
	s.args, s.env, s.cwd = nil, nil, ""
	if len(variablesIn([]string{s.url})) > 0 { // checked when the definition is loaded
		return ""
	}
	if err := agents.CheckURL(strings.ReplaceAll(s.url, "$${", "${")); err != nil {
		return "its url " + err.Error()
	}
	return ""
}

// readTimeout reads the limit of a call, in milliseconds.
func (d *draft) readTimeout(at string, s *server, n *yaml.Node) {
	ms, err := strconv.Atoi(n.Value)
	if err != nil || ms <= 0 || ms > int(maxTimeout/time.Millisecond) {
		d.lose(at, "is not a number of milliseconds up to a day", "left out; a server has the default")
		return
	}
	s.timeout = (time.Duration(ms) * time.Millisecond).String()
}

const maxTimeout = 24 * time.Hour

// trustField reads whether a server is trusted. A server is untrusted if the source says so once.
func (d *draft) trustField(name, at string) func(*yaml.Node) error {
	return func(v *yaml.Node) error {
		yes, err := boolOf(v)
		switch {
		case !yes:
			d.untrusted = addTo(d.untrusted, name)
		case d.gemini:
			d.trusted = addTo(d.trusted, name)
		default:
			d.lose(at+".trust", "is not known here", "left out")
		}
		return err
	}
}

// readHeaders reads the headers of requests to a server.
func (d *draft) readHeaders(at string, s *server, n *yaml.Node) error {
	return eachKey(n, func(name string, v *yaml.Node) error {
		value, err := textOf(v)
		switch {
		case err != nil:
			return err
		case !header.IsName(name):
			d.lose(at+"."+name, "is not a header that can be set", "left out")
		case !header.IsText(value):
			d.lose(at+"."+name, "holds a control character", "left out")
		default:
			s.headers = append(s.headers, variable{name, d.bracedVariables(value)})
		}
		return nil
	})
}

func (d *draft) excludeTools(s *server) {
	for _, t := range s.exclude {
		// A word with arguments denies its whole tool.
		t, _ = cutArgument(t)
		d.excludeTool("mcpServers."+s.name+".excludeTools", s.name, t)
	}
}

// excludeTool excludes a tool of a server, or all of them if the tool cannot be named.
func (d *draft) excludeTool(key, server, tool string) {
	pattern := mcpTool(server, tool)
	if pattern == "" {
		pattern = mcpTool(server, "*")
		d.lose(key+": "+tool, "it cannot be named", "all tools of the server are excluded")
	}
	d.exclude = addTo(d.exclude, pattern)
}

// readEnv reads a server's environment.
func (d *draft) readEnv(at string, s *server, n *yaml.Node) error {
	return eachKey(n, func(name string, v *yaml.Node) error {
		value, err := textOf(v)
		if err != nil {
			return err
		}
		if !regexp.MustCompile(`^[A-Za-z_]\w*$`).MatchString(name) {
			d.lose(at+"."+name, "is not the name of a variable", "left out")
			return nil
		}
		s.env = append(s.env, variable{name, d.bracedVariables(value)})
		return nil
	})
}

// bracedVariables writes $NAME as ${NAME} if the source expands both.
func (d *draft) bracedVariables(value string) string {
	if !d.gemini {
		return value
	}
	return regexp.MustCompile(`\$([A-Za-z_]\w*)`).ReplaceAllString(value, "$${$1}")
}

// variables rewrites the variables of s for a definition: ${NAME} without a default, and $${ for a literal ${. With
// none, the source has no variables (a manifest).
func (d *draft) variables(at string, s *server, none bool) {
	fallback := regexp.MustCompile(`\$\{([A-Za-z_]\w*):-[^}]*\}`)
	other := regexp.MustCompile(`\$\{([A-Za-z_]\w*\})?`)
	write := func(at string, text *string) {
		if !none && fallback.MatchString(*text) {
			*text = fallback.ReplaceAllString(*text, "$${$1}")
			d.lose(at, "a variable has no default here", *text)
		}
		*text = other.ReplaceAllStringFunc(*text, func(v string) string {
			if none || v == "${" {
				return "$" + v
			}
			return v
		})
	}
	write(at+".command", &s.command)
	write(at+".cwd", &s.cwd)
	write(at+".url", &s.url)
	if s.cwd != "" && !filepath.IsLocal(s.cwd) {
		d.lose(at+".cwd", fmt.Sprintf("%q leads out of the workspace, where servers run", s.cwd), "left out")
		s.cwd = ""
	}
	for i := range s.args {
		write(at+".args", &s.args[i])
	}
	for i := range s.env {
		write(at+".env."+s.env[i].name, &s.env[i].value)
	}
	for i := range s.headers {
		write(at+".headers."+s.headers[i].name, &s.headers[i].value)
	}
}

// removeTrust removes trust from servers with a tool that needs approval, because a trusted server's tools need none.
func (d *draft) removeTrust() {
	d.trusted = slices.DeleteFunc(d.trusted, func(name string) bool {
		asked := slices.ContainsFunc(d.ask, func(p string) bool {
			server, _ := serverOf(p)
			return p == "*" || p == "mcp" || server == name
		})
		gone := slices.Contains(d.gone, name) || slices.Contains(d.untrusted, name)
		if asked && !gone {
			d.lose("trust of "+name, "a trusted server's tools are never asked about", "left out")
		}
		return asked || gone
	})
}

// confine restricts tools to those that the servers' own lists include. It replaces "all tools" by the scopefs tools
// and those of the agent's servers.
func (d *draft) confine() {
	if !slices.ContainsFunc(d.servers, func(s *server) bool { return s.include != nil }) {
		return
	}
	have, wide := d.tools, false
	if have == nil {
		have = []string{"*"}
	}
	tools := []string{}
	for _, t := range have {
		prefix, rest, isMCP := strings.Cut(t, ":")
		name, tool, _ := strings.Cut(rest, ":")
		switch i := slices.IndexFunc(d.servers, func(s *server) bool { return s.name == name }); {
		case t == "*":
			wide = true
			tools = addTo(addTo(tools, builtins()...), d.ofServers()...)
		case t == "mcp":
			wide = true
			tools = addTo(tools, d.ofServers()...)
		case !isMCP || prefix != "mcp" || i < 0 || d.servers[i].include == nil:
			tools = addTo(tools, t)
		case tool == "*":
			tools = addTo(tools, d.servers[i].tools()...)
		case slices.Contains(d.servers[i].include, tool):
			tools = addTo(tools, t)
		default:
			d.lose("tools: "+t, "the server's includeTools leaves it out", "left out")
		}
	}
	if wide {
		d.lose("tools", "a definition cannot allow all tools except those that includeTools omits",
			"the tools of scopefs and of the agent's own servers, one by one")
	}
	d.tools = tools
}

// dropLeftOut removes the tools of servers that were left out. A host's server with the same name is another server.
func (d *draft) dropLeftOut() {
	d.allowOwn()
	for i, list := range []*[]string{&d.tools, &d.allowed, &d.exclude, &d.ask} {
		*list = slices.DeleteFunc(*list, func(pattern string) bool {
			name, ok := serverOf(pattern)
			ok = ok && slices.Contains(d.gone, name)
			if ok && i == 0 {
				d.lose("tools: "+pattern, "its server is left out", "left out")
			}
			return ok
		})
	}
}

// allowOwn restricts an agent with all tools of all servers to its own servers if one was left out. A host's server
// with that name is another server.
func (d *draft) allowOwn() {
	if len(d.gone) == 0 {
		return
	}
	gone := func(name string) bool { return slices.Contains(d.gone, name) }
	wide := d.tools == nil ||
		slices.ContainsFunc(d.tools, func(t string) bool { return t == "*" || t == "mcp" || strings.HasPrefix(t, "mcp:*") })
	open := d.mcpAllowed == nil || slices.ContainsFunc(d.mcpAllowed, func(p string) bool { return strings.Contains(p, "*") })
	d.mcpExcluded = slices.DeleteFunc(d.mcpExcluded, gone)
	if d.mcpAllowed != nil {
		d.mcpAllowed = slices.DeleteFunc(d.mcpAllowed, gone)
	}
	if !wide || !open {
		return
	}
	own := []string{}
	for _, s := range d.servers {
		if d.mcpAllowed == nil || catalog.AnyOf(d.mcpAllowed, s.name) {
			own = append(own, s.name)
		}
	}
	d.mcpAllowed = own
	d.lose("mcp servers", "a server of the host with the name of one that was left out is another server",
		"policy.mcp.allowed has the agent's own")
}

// serverOf returns SERVER of mcp:SERVER:TOOL.
func serverOf(pattern string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(pattern, "mcp:")
	name, _, _ = strings.Cut(rest, ":")
	return name, ok
}

func (d *draft) ofServers() (tools []string) {
	for _, s := range d.servers {
		tools = addTo(tools, s.tools()...)
	}
	return tools
}

// tools returns the patterns of the tools that an agent may use on s.
func (s *server) tools() (tools []string) {
	if s.include == nil {
		return []string{mcpTool(s.name, "*")}
	}
	for _, t := range s.include {
		if p := mcpTool(s.name, t); p != "" && !strings.Contains(t, "*") {
			tools = addTo(tools, p)
		}
	}
	return tools
}

// loseUndefined records a loss for each server that the source names and does not define.
func (d *draft) loseUndefined() {
	names := slices.Concat(d.mentioned, d.mcps, d.trusted, d.mcpAllowed, d.mcpExcluded)
	for _, t := range slices.Concat(d.tools, d.allowed, d.exclude, d.ask) {
		if name, ok := serverOf(t); ok {
			names = addTo(names, name)
		}
	}
	for _, name := range names {
		if !strings.Contains(name, "*") && !slices.Contains(d.named, name) {
			d.lose("mcp server "+name, "it is defined in another file, which is not read",
				"its name at most; define it in mcp_servers or an extension: a definition that names an undefined server does not load")
		}
	}
}
