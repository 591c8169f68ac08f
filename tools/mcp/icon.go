package mcp

import (
	"net/url"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/tools"
)

// Icons (SEP-973), as the d of a path in a square of 24 units. They are data, because a client that fetched them would tell a
// server that it has.
const (
	viewIcon  = "M4 4h16v16H4zM8 8h8v8H8z" // a scope within a scope
	logIcon   = "M5 6h14M5 12h14M5 18h9"
	fileIcon  = "M6 3h8l4 4v14H6zM14 3v4h4"
	dirIcon   = "M3 6h6l2 2h10v11H3z"
	readIcon  = "M4 12s3-6 8-6 8 6 8 6-3 6-8 6-8-6-8-6zM12 10v4"
	writeIcon = "M4 20l1-4L16 5l3 3L8 19z"
	runIcon   = "M7 4l12 8-12 8z"
)

// icon returns the list of icons that has one.
func icon(d string) []mcp.Icon {
	svg := `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#778" stroke-width="2"><path d="` + d + `"/></svg>`
	return []mcp.Icon{{Source: "data:image/svg+xml," + url.PathEscape(svg), MIMEType: "image/svg+xml", Sizes: []string{"any"}}}
}

// toolIcon returns the icon of what a tool does.
func toolIcon(h tools.Hints) []mcp.Icon {
	switch {
	case h.Writes:
		return icon(writeIcon)
	case h.Acts:
		return icon(runIcon)
	}
	return icon(readIcon)
}
