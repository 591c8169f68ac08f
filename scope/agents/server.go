package agents

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/header"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Server configures how an MCP server is started, or its address. Its strings
// have ${VAR} expanded and may contain secrets. Never log them.
type Server struct {
	URL     string            // the address of a server that is not started; "" for a Command
	Headers map[string]string // headers of requests to URL
	Command string
	Args    []string
	Env     map[string]string
	Cwd     string        // relative to the workspace, or absolute below Dir; "" is the workspace
	Dir     string        // the directory of the extension that ships the server, which its sandbox shows read-only; "" for none
	Edition string        // identifies that directory
	Timeout time.Duration // limit of one call; 0 is the default
	Include []string      // wildcards of its tools; nil means all
	Exclude []string      // wildcards of its tools; overrides Include
	Start   time.Duration // limit of a start; 0 is the default
	Private bool          // visible only to the agents that it is defined for
	Own     bool          // defined in the agent's definition
	Network hosts.Network // network of its sandbox
	Shows   Workspace     // access to the agent's view; "" is the default, see Use
	From    string        // the file that defines it, relative to the base directory; absolute in a user's settings
}

// Workspace is a server's access to the agent's view.
type Workspace string

// The levels of access to the view.
const (
	WorkspaceNone  Workspace = "none"
	WorkspaceRead  Workspace = "read"
	WorkspaceWrite Workspace = "write"
)

// Use returns the server's access to the view. The default is write for an
// agent's own server and none for one that the operator defines for several
// agents.
func (s Server) Use() Workspace {
	switch {
	case s.Shows != "":
		return s.Shows
	case s.Own:
		return WorkspaceWrite
	}
	return WorkspaceNone
}

// String returns the server's file. It contains no secrets.
func (s Server) String() string { return "server of " + s.From }

// GoString is String.
func (s Server) GoString() string { return s.String() }

// Servers are MCP servers by name.
type Servers map[string]Server

// clone returns a deep copy.
func (s Servers) clone() Servers {
	out := make(Servers, len(s))
	for name, server := range s {
		server.Args, server.Env, server.Headers = slices.Clone(server.Args), maps.Clone(server.Env), maps.Clone(server.Headers)
		server.Include, server.Exclude = slices.Clone(server.Include), slices.Clone(server.Exclude)
		out[name] = server
	}
	return out
}

// EachServer calls f for each server of n. A server needs a command or a url,
// and must not have keys of the other kind.
func EachServer(n *yaml.Node, f func(name string, value *yaml.Node) error) error {
	return fields.EachKey(n, func(name string, value *yaml.Node) error {
		var wrong, inside fields.Problems
		if !catalog.IsServerName(name) {
			wrong.Add(value.Line, fmt.Errorf("mcp_servers: %q is no name of a server: want 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.', starting with a letter or digit, not ending in '_' and no two of that in a row", name))
		}
		far := frontmatter.Value(value, "url") != nil || frontmatter.Value(value, "httpUrl") != nil
		if value.Kind == yaml.MappingNode && !far && frontmatter.Value(value, "command") == nil {
			wrong.Add(value.Line, fmt.Errorf("mcp_servers: %q has no command: add one, or a url", name))
		}
		for _, key := range []string{"command", "args", "env", "cwd", "network", "workspace"} {
			if n := frontmatter.Value(value, key); far && n != nil {
				wrong.Add(n.Line, fmt.Errorf("mcp_servers: %q has a url and %s, which is for a server that is started: remove one", name, key))
			}
		}
		if n := frontmatter.Value(value, "headers"); !far && n != nil {
			wrong.Add(n.Line, fmt.Errorf("mcp_servers: %q has headers, which are for a server with a url: remove them", name))
		}
		inside.Add(value.Line, f(name, value))
		for _, err := range inside {
			at := err.(*fields.LineError)
			wrong.Add(at.Line, fmt.Errorf("mcp_servers: %s: %w", name, at.Err))
		}
		return wrong.Err()
	})
}

// Fields returns the keys of a server. vars are variables in addition to the
// environment. The fields append to refs the presets, which must exist.
func (s *Server) Fields(vars map[string]string, refs *[]catalog.Ref) map[string]fields.Field {
	expandedField := func(out *string) fields.Field { return fields.Expanded(out, vars) }
	return map[string]fields.Field{
		"command": func(n *yaml.Node) error {
			if err := expandedField(&s.Command)(n); err != nil {
				return err
			}
			if s.Command == "" {
				return errors.New("is empty: name a program")
			}
			return nil
		},
		"args": func(n *yaml.Node) error {
			s.Args = []string{}
			return fields.EachItem(n, func(item *yaml.Node) error {
				var arg string
				err := expandedField(&arg)(item)
				s.Args = append(s.Args, arg)
				if err != nil {
					return fields.AtLine(item.Line, fmt.Errorf("args: %w", err))
				}
				return nil
			})
		},
		"env":     fields.Env(&s.Env, vars),
		"url":     urlField(&s.URL, vars),
		"headers": headersField(&s.Headers, vars),
		"cwd": func(n *yaml.Node) error {
			if err := expandedField(&s.Cwd)(n); err != nil {
				return err
			}
			if in, ok := strings.CutPrefix(s.Cwd, beneath.Alias); ok && (in == "" || in[0] == '/') {
				s.Cwd = strings.Trim(in, "/")
			}
			if s.Dir != "" && strings.HasPrefix(s.Cwd+"/", s.Dir+"/") && filepath.Clean(s.Cwd) == strings.TrimSuffix(s.Cwd, "/") {
				return nil
			}
			if s.Cwd != "" && !filepath.IsLocal(s.Cwd) {
				return fmt.Errorf("%q leads out of the workspace: write a directory relative to it", s.Cwd)
			}
			return nil
		},
		"include_tools": wildcardsField(&s.Include),
		"exclude_tools": wildcardsField(&s.Exclude),
		"timeout":       fields.Duration(&s.Timeout),
		"start_timeout": fields.Duration(&s.Start),
		"network":       hosts.Field(&s.Network, refs),
		"workspace":     fields.OneOf(&s.Shows, WorkspaceNone, WorkspaceRead, WorkspaceWrite),
	}
}

// urlField reads the address of a server. Its errors do not quote the address,
// which may contain a secret.
func urlField(out *string, vars map[string]string) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.Expanded(out, vars)(n); err != nil {
			return err
		}
		return CheckURL(*out)
	}
}

// CheckURL returns an error if text is not a valid address of a server. The
// error does not quote the address.
func CheckURL(text string) error {
	at, err := url.Parse(text)
	switch {
	case err != nil || at.Hostname() == "" || at.Scheme != "https" && at.Scheme != "http":
		return errors.New("is no address: write https://HOST/PATH")
	case at.User != nil:
		return errors.New("has a user: write headers: {Authorization: ...}")
	case at.Scheme == "http" && !isLoopback(at.Hostname()):
		return errors.New("is http, which only loopback may be: write https")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// headersField reads headers. Its errors quote no value.
func headersField(out *map[string]string, vars map[string]string) fields.Field {
	return func(n *yaml.Node) error {
		*out = map[string]string{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			if !header.IsName(name) {
				return fmt.Errorf("headers: %q cannot be set: want a name of letters, digits, '-' and '_', and none that HTTP or MCP sets", name)
			}
			var text string
			err := fields.Expanded(&text, vars)(value)
			if err == nil && !header.IsText(text) {
				err = errors.New("holds a control character: remove it, also from the end of what a variable holds")
			}
			if err != nil {
				return fields.AtLine(value.Line, fmt.Errorf("headers: %s %w", name, err)) // no colon, see Env
			}
			(*out)[name] = text
			return nil
		})
	}
}

// wildcardsField reads a list of wildcards of a server's tools.
func wildcardsField(out *[]string) fields.Field {
	return fields.Texts(out, "names", func(name string) error {
		if err := catalog.CheckTool(name); err != nil {
			return fmt.Errorf("%q %w", name, err)
		}
		return nil
	})
}
