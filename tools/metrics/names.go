package metrics

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/tools"
)

// maxName limits a name and the value of a tag, in bytes.
const maxName = 256

// checkName returns an error for a name of a measurement, a field or a tag that no
// server takes as it is. The line protocol cannot escape a line end, and not a
// backslash at the end of a name; a line that begins with "#" is a comment. Servers
// drop a tag or a field with the name time, and use names with "_" themselves.
// InfluxDB 1 replaces "now()" by the time, also where it is quoted.
func checkName(what, name string) error {
	if err := checkValue(what, name); err != nil {
		return err
	}
	switch {
	case name[0] == '_' || name[0] == '#':
		return tools.Errorf(tools.Invalid, "%s: %.64q begins with %q", what, name, name[:1])
	case strings.EqualFold(name, "time") || strings.EqualFold(name, "now()"):
		return tools.Errorf(tools.Invalid, "%s: %s is a word of the server's", what, name)
	}
	return nil
}

// checkValue returns an error for the value of a tag that no server takes as it is.
func checkValue(what, value string) error {
	switch {
	case value == "":
		return tools.Errorf(tools.Invalid, "%s: is empty", what)
	case len(value) > maxName:
		return tools.Errorf(tools.Invalid, "%s: has %d bytes, of at most %d", what, len(value), maxName)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return tools.Errorf(tools.Invalid, "%s: %.64q holds a control character", what, value)
	case strings.Contains(value, `\`):
		return tools.Errorf(tools.Invalid, "%s: %.64q holds a backslash", what, value).Suggest("a field may hold any text")
	}
	return nil
}
