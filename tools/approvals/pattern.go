package approvals

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// A Kind is the kind of subject that the pattern of a standing approval matches.
type Kind string

// The kinds. Requests without a kind match only the pattern **, which covers all calls of
// their tool.
const (
	KindCommand Kind = "command" // the command of a shell
	KindPath    Kind = "path"    // the objects of the call's paths
	KindHost    Kind = "host"    // host:port of a connection
	KindTool    Kind = "tool"    // of a standing approval alone: all calls of its tool, see [Set.Grant]
)

// everything is the pattern of all calls of a tool. Commands have no such pattern,
// because a shell could run anything.
const everything = "**"

// checkPattern returns the error of a pattern that no request of a kind can match.
func checkPattern(kind Kind, pattern string) error {
	wrong := func(err error) error { return fmt.Errorf("pattern %.200q: %w", pattern, err) }
	switch {
	case strings.ContainsFunc(pattern, unicode.IsControl):
		return wrong(errors.New("holds a control character: remove it"))
	case kind == KindCommand:
		first, _, _ := strings.Cut(strings.TrimSpace(pattern), " ")
		if first == "" || strings.Contains(first, "*") {
			return wrong(errors.New("names no program: begin with one, such as git status *"))
		}
	case pattern == everything:
	case kind == KindPath:
		if err := (scope.PathRule{Pattern: pattern}).Check(); err != nil {
			return wrong(err)
		}
	case kind == KindHost:
		if _, err := matchHost(pattern, "x:1"); err != nil {
			return wrong(err)
		}
	default:
		return wrong(errors.New("calls of this tool have no command, path or host to match: write ** for all of them"))
	}
	return nil
}

// matches reports whether a pattern covers a request.
func matches(pattern string, p *Approval) bool {
	switch {
	case p.Kind == KindCommand:
		return p.Subject != "" && matchCommand(pattern, p.Subject)
	case pattern == everything:
		return true
	case p.Kind == KindPath:
		// The objects that the paths lead to count, not the names in the call.
		return matchPath(pattern, p.Object) && (p.ReplacedObject == (Object{}) || matchPath(pattern, p.ReplacedObject))
	case p.Kind == KindHost:
		ok, err := matchHost(pattern, p.Subject)
		return ok && err == nil
	}
	return false
}

// matchPath reports whether a pattern, as a definition has it, covers an object or a
// directory above it.
func matchPath(pattern string, o Object) bool {
	if o.Path == "" || o.Path == "." {
		return false
	}
	policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: pattern, Access: scope.Hide}}})
	return err == nil && policy.File(scope.OpRead, o.Path).Kind == scope.KindPath
}

// matchHost reports whether HOST:PORT covers a connection. HOST may begin with "*.",
// and PORT may be "*" or several, such as 80,443.
func matchHost(pattern, subject string) (bool, error) {
	host, port, err := net.SplitHostPort(pattern)
	if err != nil {
		return false, errors.New("is not HOST:PORT: write *.example.org:443, or *.example.org:* for all ports")
	}
	wanted, err := network.ParseHostPattern(host)
	if err != nil {
		return false, err
	}
	h, p, err := net.SplitHostPort(subject)
	if err != nil {
		return false, err
	}
	return wanted.Match(h) && (port == "*" || slices.Contains(strings.Split(port, ","), p)), nil
}

// matchCommand reports whether a pattern covers a command. The command must be one
// program with its words and nothing else: see words. In the pattern, words are
// separated by blanks.
//
//   - A word without "*" is this word.
//   - "*" is one word that is no option; at the end, any number of them.
//   - "**" at the end is any number of words, options too.
//   - In other words "*" is any text without a slash. A word that begins with it is no
//     option.
//
// Options are thus covered only where the pattern has them: "git *" is not
// "git -c core.pager=...".
func matchCommand(pattern, command string) bool {
	said, ok := words(command)
	if !ok {
		return false
	}
	wanted := strings.Fields(pattern)
	for i, w := range wanted {
		last := i == len(wanted)-1
		switch {
		case last && w == everything:
			return true
		case last && w == "*":
			return !slices.ContainsFunc(said, isOption)
		case len(said) == 0 || !matchWord(w, said[0]):
			return false
		}
		said = said[1:]
	}
	return len(said) == 0
}

func isOption(word string) bool { return strings.HasPrefix(word, "-") || strings.HasPrefix(word, "+") }

func matchWord(pattern, word string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == word
	}
	if strings.HasPrefix(pattern, "*") && isOption(word) {
		return false
	}
	if pattern == "*" {
		return true
	}
	// Below a directory that the pattern names, not beside it.
	if slices.Contains(strings.Split(word, "/"), "..") {
		return false
	}
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(word, parts[0])
	if !ok {
		return false
	}
	for i, part := range parts[1:] {
		at := strings.Index(rest, part)
		if i == len(parts)-2 { // the last one ends the word
			at = len(rest) - len(part)
		}
		if at < 0 || !strings.HasPrefix(rest[at:], part) || strings.Contains(rest[:at], "/") {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// words returns the words of a command that runs one program. It refuses everything that
// the shell does not take literally: operators, redirections, expansions, assignments,
// globs, comments, further lines, characters outside of plain. Quotes may hold characters
// without a meaning within them.
func words(command string) (all []string, ok bool) {
	var word strings.Builder
	inWord, quote := false, rune(0)
	for _, r := range command {
		switch {
		case unicode.IsControl(r) && r != '\t' || r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != '\t':
			return nil, false
		case quote != 0 && r == quote:
			quote = 0
		case quote == '"' && strings.ContainsRune("$`\\!", r):
			return nil, false
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			if len(all) == 0 { // the program is not quoted
				return nil, false
			}
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			if inWord {
				all = append(all, word.String())
				word.Reset()
				inWord = false
			}
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("_@%+=:,./-", r):
			if len(all) == 0 && r == '=' { // an assignment
				return nil, false
			}
			word.WriteRune(r)
			inWord = true
		default:
			return nil, false
		}
	}
	if quote != 0 {
		return nil, false
	}
	if inWord {
		all = append(all, word.String())
	}
	return all, len(all) > 0
}

// What an operation on a path of a view needs an approval for.
const (
	PathRead  = "files:read"
	PathWrite = "files:write"
	PathWhole = "files:open" // the view of a root as a whole
)

// PathTool names in an approval, in place of a tool, operations on paths of the agent's view, or of that of a root.
func PathTool(what, root string) string {
	if root != "" {
		what += ":" + root
	}
	return what
}

// OfPath returns what an approval of PathTool is for, and the root; "" for any other.
func (a Approval) OfPath() (what, root string) {
	for _, what := range []string{PathRead, PathWrite, PathWhole} {
		if rest, ok := strings.CutPrefix(a.Tool, what); ok && a.Kind == KindPath && (rest == "" || rest[0] == ':') {
			return what, strings.TrimPrefix(rest, ":")
		}
	}
	return "", ""
}

// Describe says what an approval of OfPath is for. It is not printable: it has an agent's text.
func (a Approval) Describe(what, root string) string {
	at := path.Join(root, a.Object.Path)
	switch what {
	case PathWhole:
		return "uses the directory " + at
	case PathWrite:
		return "changes " + at
	}
	return "reads " + at
}
