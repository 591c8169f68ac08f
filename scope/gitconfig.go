package scope

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxGitConfig limits a config for CheckGitConfig, in bytes.
const MaxGitConfig = 1 << 20

// CheckGitConfig returns why a repository's config must not replace another: the first
// setting that is neither in the old one nor one of keys. A key is "section.name" or, for
// sections with a subsection, "section.*.name", in lower case. rel is the path of the
// config: a URL must not lead out of the view from there.
//
// It reads a part of git's syntax (git-config(1)), the part that git writes. A file in any
// other form is refused, for git could read it otherwise.
func CheckGitConfig(rel string, keys []string, old, config []byte) error {
	if len(config) > MaxGitConfig {
		return fmt.Errorf("config is larger than %d bytes", MaxGitConfig)
	}
	had := map[gitSetting]bool{}
	if before, err := parseGitConfig(old); err == nil {
		for _, s := range before {
			had[s] = true
		}
	}
	now, err := parseGitConfig(config)
	if err != nil {
		return err
	}
	for _, s := range now {
		if had[s] {
			continue
		}
		if !slices.Contains(keys, s.pattern()) || !s.harmless(gitDepth(rel)) {
			return fmt.Errorf("sets %s", s.key())
		}
	}
	return nil
}

// gitSetting is one line of a config.
type gitSetting struct {
	section, sub, name string // section and name in lower case
	hasSub             bool
	value              string
}

func (s gitSetting) key() string {
	if s.hasSub {
		return s.section + "." + s.sub + "." + s.name
	}
	return s.section + "." + s.name
}

func (s gitSetting) pattern() string {
	if s.hasSub {
		return s.section + ".*." + s.name
	}
	return s.key()
}

// harmless reports whether the value of a key that may be set executes nothing: a command
// after "!", or a remote helper "NAME::" (gitremote-helpers(7)); and that no URL reads a
// repository of the host outside of the view. depth is the result of gitDepth.
func (s gitSetting) harmless(depth int) bool {
	if strings.HasPrefix(s.value, "!") {
		return false
	}
	helper, _, found := strings.Cut(s.value, "::")
	if found && helper != "" && strings.Trim(helper, alphanumeric+"+-.") == "" {
		return false
	}
	return !slices.Contains([]string{"url", "pushurl", "remote", "pushremote", "pushdefault"}, s.name) || !leadsOut(s.value, depth)
}

// gitDepth returns the depth of the directory in which git resolves the relative URLs of a
// config: the work tree, or a repository without one. Work trees of submodules are deeper.
func gitDepth(rel string) int {
	names := strings.Split(rel, "/")
	if at := slices.Index(names, ".git"); at >= 0 {
		return at
	}
	return slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, ".git") }) + 1
}

// gitSchemes are those of URLs for which git has a program of its own. For another one it
// looks for git-remote-SCHEME.
var gitSchemes = []string{"https", "http", "ssh", "git", "git+ssh", "ssh+git", "ftp", "ftps"}

// leadsOut reports whether git takes a URL for a path of the host ("GIT URLS" in
// git-fetch(1)) that is out of the view, or passes the URL to another program. Such a path
// begins with / or ~, except for the sandbox's /workspace, or has too many "..". After
// another name ".." could leave a directory that a link led to.
func leadsOut(url string, depth int) bool {
	colon, slash := strings.Index(url, ":"), strings.Index(url, "/")
	if colon >= 0 && (slash < 0 || colon < slash) {
		return strings.HasPrefix(url[colon:], "://") && !slices.Contains(gitSchemes, url[:colon]) || strings.EqualFold(url[:colon], "file")
	}
	rest, workspace := strings.CutPrefix(url+"/", "/workspace/")
	if workspace {
		url, depth = rest, 0
	}
	if strings.HasPrefix(url, "/") && !workspace || strings.HasPrefix(url, "~") {
		return true
	}
	named := false
	for name := range strings.SplitSeq(url, "/") {
		switch name {
		case "", ".":
		case "..":
			if depth--; named || depth < 0 {
				return true
			}
		default:
			named = true
		}
	}
	return false
}

const (
	lower        = "abcdefghijklmnopqrstuvwxyz"
	alphanumeric = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

var errOddConfig = errors.New("is in no form that git writes")

func parseGitConfig(text []byte) (all []gitSetting, err error) {
	odd := func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' || r == 0xfeff }
	if bytes.ContainsFunc(text, odd) {
		return nil, errors.New("config holds a control character or a byte order mark")
	}
	var at gitSetting
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.Trim(line, " \t\n")
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[':
			if at, err = parseGitSection(line); err != nil {
				return nil, fmt.Errorf("line %d %w", number, err)
			}
		default:
			s := at
			if err := s.parse(line); err != nil || at.section == "" {
				return nil, fmt.Errorf("line %d %w", number, errOddConfig)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// parseGitSection parses [name] or [name "sub"], alone on its line.
func parseGitSection(line string) (s gitSetting, err error) {
	inner, ok := strings.CutSuffix(line[1:], "]")
	if !ok {
		return s, errOddConfig
	}
	name, quoted, hasSub := strings.Cut(inner, " ")
	s.section, s.hasSub = strings.ToLower(name), hasSub
	if s.section == "" || strings.Trim(name, alphanumeric+"-") != "" {
		return s, errOddConfig
	}
	if !hasSub {
		return s, nil
	}
	if len(quoted) < 2 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return s, errOddConfig
	}
	sub, err := unquoteGit(quoted[1:len(quoted)-1], "")
	if err != nil {
		return s, errOddConfig
	}
	s.sub = sub
	return s, nil
}

// parse sets the name and value of a line "name = value" or "name", which means true.
func (s *gitSetting) parse(line string) error {
	name, value, found := strings.Cut(line, "=")
	name = strings.TrimRight(name, " \t")
	s.name = strings.ToLower(name)
	if name == "" || !strings.Contains(lower, s.name[:1]) || strings.Trim(name, alphanumeric+"-") != "" {
		return errOddConfig
	}
	if !found {
		return nil
	}
	value = strings.TrimLeft(value, " \t")
	if strings.HasPrefix(value, `"`) && len(value) > 1 && strings.HasSuffix(value, `"`) {
		value = value[1 : len(value)-1]
	} else if strings.ContainsAny(value, "#;") { // a comment, or text that git would have quoted
		return errOddConfig
	}
	var err error
	s.value, err = unquoteGit(value, "ntb")
	return err
}

// unquoteGit replaces \\ and \" and fails at quotes that are not escaped and at other
// escapes than those in more, which it keeps.
func unquoteGit(text, more string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return "", errOddConfig
		case '\\':
			i++
			if i == len(text) || text[i] != '\\' && text[i] != '"' && !strings.Contains(more, text[i:i+1]) {
				return "", errOddConfig
			}
			if text[i] != '\\' && text[i] != '"' {
				b.WriteByte('\\')
			}
		}
		b.WriteByte(text[i])
	}
	return b.String(), nil
}
