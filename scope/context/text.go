package scoped

import (
	"fmt"
	"regexp"
	"sync"
)

// Text returns the context for a model, as whoever is given it reads it: the messages
// in their order, without _instance, in one block that names who gives them. It is
// empty for a call without scopes.
func (s Scoped) Text(from string) string {
	if s.Empty() {
		return ""
	}
	return Block("context", from, string(s.Environment().JSON()))
}

// closing matches what a model could read as the end of a block: in any case, with
// white space or invisible characters in it.
var closing = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)<([\s\pZ\pC]*)/([\s\pZ\pC]*(?:task|context|call))`)
})

// Block returns text for a model between tags that mark its sender and its end. What
// looks like such an end inside is escaped, as JSON allows.
func Block(kind, from, text string) string {
	return fmt.Sprintf("<%s from=%q>\n%s\n</%[1]s>\n", kind, from, closing().ReplaceAllString(text, `<${1}\/${2}`))
}
