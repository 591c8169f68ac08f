package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/printable"
)

// warnings returns, one line each, what the definition lets the author of its source do once it is loaded: the
// commands it starts, the hosts it connects to, and the variables it reads from the daemon's environment.
func (d *draft) warnings() (lines []string) {
	for _, servers := range []*yaml.Node{d.serversNode(), d.kept["mcp_servers"]} {
		if servers == nil || servers.Kind != yaml.MappingNode {
			continue
		}
		for i := 0; i+1 < len(servers.Content); i += 2 {
			at, server := "mcp_servers."+servers.Content[i].Value, servers.Content[i+1]
			if address := child(server, "url"); address != nil {
				lines = append(lines, printable.Text(fmt.Sprintf("%s: sends calls and headers to %s: remove it unless you trust the file", at, hostIn(address.Value))))
			} else {
				words := append(scalars(child(server, "command")), scalars(child(server, "args"))...)
				lines = append(lines, printable.Text(fmt.Sprintf("%s: starts %s: remove it unless you trust the file", at, shown(words))))
			}
			for _, name := range variablesIn(scalars(server)) {
				lines = append(lines, printable.Text(fmt.Sprintf("%s: reads %s of the daemon's environment: remove it unless you trust the file", at, name)))
			}
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
