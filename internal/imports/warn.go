package imports

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// warnings returns, one line each, what the definition lets the author of its source do once it is loaded: the
// commands it starts, the hosts it connects to, the variables it reads from the daemon's environment, and the directory
// that it shows.
func (d *draft) warnings() (lines []string) {
	for _, servers := range []*yaml.Node{d.serversNode(), d.kept["mcp_servers"]} {
		lines = append(lines, serverWarnings(servers, nil)...)
	}
	if d.filesBase != "" {
		lines = append(lines, printable.Text(fmt.Sprintf("dir: shows %s, which has to exist: remove it unless you trust the file", d.dir())))
	}
	return lines
}

// serverWarnings is warnings of servers, which may be nil. known are variables that are not the daemon's.
func serverWarnings(servers *yaml.Node, known []string) (lines []string) {
	if servers == nil || servers.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(servers.Content); i += 2 {
		at, server := "mcp_servers."+servers.Content[i].Value, servers.Content[i+1]
		if address := cmp.Or(frontmatter.Value(server, "url"), frontmatter.Value(server, "httpUrl")); address != nil {
			lines = append(lines,
				printable.Text(fmt.Sprintf("%s: sends calls and headers to %s: remove it unless you trust the file", at, hostIn(address.Value))))
		} else {
			words := append(scalars(frontmatter.Value(server, "command")), scalars(frontmatter.Value(server, "args"))...)
			lines = append(lines, printable.Text(fmt.Sprintf("%s: starts %s: remove it unless you trust the file", at, shown(words))))
		}
		for _, name := range variablesIn(scalars(server)) {
			if !slices.Contains(known, name) {
				lines = append(lines,
					printable.Text(fmt.Sprintf("%s: reads %s of the daemon's environment: remove it unless you trust the file", at, name)))
			}
		}
	}
	return lines
}

// Manifest is what the manifest of an extension says to whoever imports it.
type Manifest struct {
	Name     scope.ID
	Agents   []string // the paths of definitions, relative to the manifest
	Servers  []string // names
	Warnings []string // see Result
}

// ReadManifest reads the manifest of an extension, in YAML or JSON. It checks no more than it needs: loading checks all.
func ReadManifest(text []byte) (m Manifest, err error) {
	if len(text) > MaxSource {
		return m, fmt.Errorf("is larger than %d bytes: shorten it", MaxSource)
	}
	if json.Valid(text) { // YAML allows no tabs between values
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			return m, err
		}
		if text, err = yaml.Marshal(v); err != nil {
			return m, err
		}
	}
	top, err := parseYAML(regexp.MustCompile(`\$([A-Za-z_]\w*)`).ReplaceAllString(string(text), "$${$1}"))
	if err != nil {
		return m, err
	}
	if m.Name, err = scope.ParseID(strings.Join(scalars(frontmatter.Value(top, "name")), " ")); err != nil {
		return m, fmt.Errorf("name: %w", err)
	}
	known := []string{"extensionPath", "workspacePath", "pathSeparator"}
	if settings := frontmatter.Value(top, "settings"); settings != nil {
		for _, one := range settings.Content {
			known = append(known, scalars(frontmatter.Value(one, "envVar"))...)
		}
	}
	for _, key := range []string{"mcpServers", "mcp_servers"} {
		m.Servers = append(m.Servers, namesIn(top, key)...)
		m.Warnings = append(m.Warnings, serverWarnings(frontmatter.Value(top, key), known)...)
	}
	if list := frontmatter.Value(top, "agents"); list != nil {
		for _, one := range list.Content {
			m.Agents = append(m.Agents, scalars(frontmatter.Value(one, "path"))...)
		}
	}
	return m, nil
}

// DefinitionWarnings returns what a definition of an extension gives the extension's author: see Result. It is nil for
// a text that is no definition.
func DefinitionWarnings(text []byte) (lines []string) {
	doc, err := readDocument(string(text))
	if err != nil || len(text) > MaxSource {
		return nil
	}
	lines = serverWarnings(frontmatter.Value(doc.top, "mcp_servers"), nil)
	for _, key := range []string{"dir", "user", "identity", "network", "sandbox", "env"} {
		if n := frontmatter.Value(doc.top, key); n != nil {
			lines = append(lines, printable.Text(fmt.Sprintf("%s: is %s: remove it unless you trust the file", key, shown(scalars(n)))))
		}
	}
	return lines
}

// hostIn returns the host of an address, which may be a variable. The rest of the address may contain a secret.
func hostIn(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	if rest = rest[strings.LastIndex(rest, "@")+1:]; rest == "" {
		return "an address of the environment"
	}
	return rest
}

// variablesIn returns the names of the variables that loading a definition with these texts expands. $${NAME} is not
// a variable.
func variablesIn(texts []string) (names []string) {
	variable := regexp.MustCompile(`(\$?)\$\{([A-Za-z_]\w*)\}`)
	for _, text := range texts {
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			if m[1] == "" {
				names = addTo(names, m[2])
			}
		}
	}
	slices.Sort(names)
	return names
}

// scalars returns the scalar values in n, which may be nil.
func scalars(n *yaml.Node) (texts []string) {
	if n == nil {
		return nil
	}
	if n.Kind == yaml.ScalarNode {
		return []string{n.Value}
	}
	for _, c := range n.Content {
		texts = append(texts, scalars(c)...)
	}
	return texts
}

// shown returns a command on one line, with ambiguous words quoted.
func shown(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" || strings.ContainsAny(w, " \t\r\n\"'`;:|&<>\\") {
			quoted[i] = strconv.Quote(w)
		}
	}
	return strings.Join(quoted, " ")
}
