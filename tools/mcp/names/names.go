// Package names has the names that both ends of an agent's MCP connection use.
package names

import "strings"

// Meta begins the names of our members of _meta.
const Meta = "scopefs/"

// Effects is the member of _meta of a text about what a call has changed, and of a result that has that nowhere else.
const Effects = Meta + "effects"

// Answer is the member of the content of an answered elicitation.
const Answer = "answer"

// OfTool returns a tool's name for clients: mcp__SERVER__TOOL for
// mcp:SERVER:TOOL, because MCP allows no colon in a name.
func OfTool(name string) string {
	if rest, ok := strings.CutPrefix(name, "mcp:"); ok {
		return "mcp__" + strings.Replace(rest, ":", "__", 1)
	}
	return name
}

// Tool inverts OfTool. It is unambiguous because a server's name contains no
// two consecutive underscores.
func Tool(name string) string {
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		return "mcp:" + strings.Replace(rest, "__", ":", 1)
	}
	return name
}
