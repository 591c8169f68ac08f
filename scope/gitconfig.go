package scope

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// MaxGitText limits the text of git's files for CheckGit, in bytes.
const MaxGitText = 1 << 20

// CheckGit returns why the file at rel, which has the text old, must not have another one. A
// config may have what the old one has, and the settings of keys: a key is "section.name", "section.*" for all names of a section,
// or, for sections with a subsection, "section.*.name", in lower case. It is for every kind
// of content but GitIndex.
//
// It reads a part of git's syntax (git-config(1)), the part that git writes. A file in any
// other form is refused, for git could read it otherwise.
func CheckGit(kind GitContent, rel string, keys []string, old, text []byte) error {
	if len(text) > MaxGitText {
		return fmt.Errorf("file is larger than %d bytes", MaxGitText)
	}
	at := classifyGit(rel)
	below := strings.Count(rel, "/") - at.holder
	path := strings.TrimSuffix(string(text), "\n")
	switch kind {
	case GitConfig:
		return checkGitConfig(at, below, keys, old, text)
	case GitConflicts:
		for entry := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
			if _, path, found := strings.Cut(entry, "\t"); entry != "" && (!found || !safeIndexPath(path, 0)) {
				return fmt.Errorf("has the path %.200q", path)
			}
		}
	case GitTables:
		if strings.Contains(path, "/") {
			return errors.New("names a file that is not in the directory")
		}
	case GitAlternates: // git resolves them in objects
		for line := range strings.SplitSeq(path, "\n") {
			if _, ok := insidePath(line, below-1+at.free()); !ok || strings.HasPrefix(line, `"`) {
				return fmt.Errorf("has the path %.200q", line)
			}
		}
	case GitLink:
		to, found := strings.CutPrefix(path, "gitdir: ")
		// Below the root a relative URL of the repository could lead out of the view.
		if rest, ok := insidePath(to, 1); !found || !ok || at.holder == 0 || classifyGit(rest+"/index").content != GitIndex {
			return fmt.Errorf("leads to %.200q", to)
		}
	case GitWorktree:
		if rest, ok := insidePath(path, below+at.free()); !ok || rest != ".git" && !strings.HasSuffix(rest, "/.git") {
			return fmt.Errorf("leads to %.200q", path)
		}
	case GitCommon:
		if path != "../.." {
			return fmt.Errorf("leads to %.200q", path)
		}
	default:
		return fmt.Errorf("is git's file of the unknown kind %d", kind)
	}
	return nil
}

// checkGitConfig is CheckGit of a config that is below directories deeper than what holds
// the repository.
func checkGitConfig(at gitPlace, below int, keys []string, old, config []byte) error {
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
	if GitFormat(old) != GitFormat(config) { // git would read an index otherwise than CheckGitIndex has
		return errors.New("changes extensions.objectformat")
	}
	for _, s := range now {
		switch {
		case s.section == "remote" && reachesOut(s.sub, at.free()): // also where only the URL is removed
		case had[s]:
			continue
		case s.pattern() == "remote.*.promisor" && !fetchesWithin(now, s.sub, at.free()):
		case s.key() == "extensions.objectformat" && !slices.ContainsFunc(now, gitSetting.versioned): // git would read nothing any more
		case s.key() == "extensions.partialclone" && !fetchesWithin(now, s.value, at.free()):
		case s.among(keys) && s.harmless(at, below):
			continue
		}
		switch {
		case !s.among(keys):
		case leadsOut(s.value, at.free()):
			return fmt.Errorf("sets %s to %.200q: the value is a path of the host", s.key(), s.value)
		case leadsOut(s.sub, at.free()): // git takes the name of a remote for its URL
			return fmt.Errorf("sets %s to %.200q: the name is a path of the host", s.key(), s.value)
		default:
			return fmt.Errorf("sets %s to %.200q", s.key(), s.value)
		}
		return fmt.Errorf("sets %s", s.key())
	}
	return nil
}

// GitSHA1 is the format of the names of objects for which a config says nothing.
const GitSHA1 = "sha1"

// GitFormat returns in which format a repository with a config has the names of objects; "" for a config that git
// may read otherwise.
func GitFormat(config []byte) string {
	all, err := parseGitConfig(config)
	if err != nil && bytes.Contains(bytes.ToLower(config), []byte("objectformat")) {
		return ""
	}
	format := GitSHA1
	for _, s := range all {
		if s.key() == "extensions.objectformat" {
			format = s.value
		}
	}
	return format
}

// versioned reports whether a repository has extensions.
func (s gitSetting) versioned() bool {
	return s.key() == "core.repositoryformatversion" && s.value == "1"
}

// fetchesWithin reports whether a remote has a URL, and none that reaches out: git fetches what is missing from a promisor without
// being told to, gitrepository-layout(5) and partial-clone in git's documentation.
func fetchesWithin(all []gitSetting, remote string, free int) (within bool) {
	for _, s := range all {
		if s.section == "remote" && s.sub == remote && s.name == "url" {
			if reachesOut(s.value, free) {
				return false
			}
			within = true
		}
	}
	return within
}

// gitSetting is one line of a config.
type gitSetting struct {
	section, sub, name string // section and name in lower case
	hasSub             bool
	value              string
	implicit           bool // without "=": true, or an error, where an empty value is false
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

// among reports whether keys have that of the setting.
func (s gitSetting) among(keys []string) bool {
	return slices.Contains(keys, s.pattern()) || !s.hasSub && slices.Contains(keys, s.section+".*")
}

// harmless reports whether git may have the value of a key that may be set. Nearly every
// value is judged as what git could do most with: some are a URL or the name of a program,
// and git takes the name of a remote for its URL.
func (s gitSetting) harmless(at gitPlace, below int) bool {
	switch s.key() {
	case "core.worktree": // of a submodule: in the work tree that holds its repository
		rest, ok := insidePath(s.value, below)
		up := s.value == strings.Repeat("../", below)+rest || strings.HasPrefix(s.value, "/")
		return ok && up && at.module && rest != "" && !classifyGit(rest).inside
	case "extensions.objectformat":
		return s.value == GitSHA1
	case "commit.gpgsign": // true runs a program
		return !s.implicit && slices.Contains([]string{"", "false", "no", "off", "0"}, strings.ToLower(s.value))
	case "extensions.refstorage":
		return s.value == "files" || s.value == "reftable"
	case "options.strategy": // any other is a program git-merge-STRATEGY
		return slices.Contains([]string{"ort", "recursive", "resolve", "octopus", "ours", "subtree"}, s.value)
	}
	plain := false
	switch s.pattern() {
	case "branch.*.description": // a text that git shows
		plain = true
	case "core.compression":
		plain = s.value == "-1"
	case "remote.*.tagopt":
		plain = s.value == "--tags" || s.value == "--no-tags"
	}
	return (plain || !reachesOut(s.value, at.free())) && !reachesOut(s.sub, at.free())
}

// reachesOut reports whether git could take a text for a command, after "!", for an option,
// for a remote helper "NAME::" (gitremote-helpers(7)), for a URL that another program
// gets, or for a path out of the view. git resolves it in a directory from which free
// leading ".." stay in the view.
func reachesOut(text string, free int) bool {
	if strings.HasPrefix(text, "!") || strings.HasPrefix(text, "~") || strings.HasPrefix(text, "-") {
		return true
	}
	if helper, _, found := strings.Cut(text, "::"); found && strings.Trim(helper, alphanumeric+"+-.") == "" {
		return true
	}
	if isPath(text) {
		_, ok := insidePath(text, free)
		return !ok
	}
	scheme, _, _ := strings.Cut(text, ":")
	place, isURL := strings.CutPrefix(text[len(scheme):], "://")
	switch {
	case scheme == "file" && isURL: // git takes it for the path, without an authority
		_, ok := insidePath(place, 0)
		return !ok || !strings.HasPrefix(place, "/") || strings.ContainsAny(place, "%?#")
	case strings.EqualFold(scheme, "file"):
		return true
	case !isURL: // HOST:PATH
		return strings.HasPrefix(host(text), "-")
	}
	return !slices.Contains(gitSchemes, scheme) || strings.HasPrefix(host(place), "-")
}

// isPath reports whether git takes a text for a path, not for a URL or HOST:PATH: url_is_local_not_ssh in git's connect.c.
func isPath(text string) bool {
	before, _, colon := strings.Cut(text, ":")
	return !colon || strings.Contains(before, "/")
}

// leadsOut reports whether a text is a path out of the view, also one in a file:// URL. It only words a refusal of reachesOut.
func leadsOut(text string, free int) bool {
	scheme, place, isURL := strings.Cut(text, "://")
	switch {
	case isURL && strings.EqualFold(scheme, "file"):
		text, free = place, 0
	case strings.HasPrefix(text, "~"):
		return true
	case !isPath(text):
		return false
	}
	_, ok := insidePath(text, free)
	return !ok
}

// host returns where the host of a URL begins, after the name of a user. A program may take a host that begins with - for an option.
func host(authority string) string {
	if end := strings.IndexAny(authority, "/:["); end >= 0 && authority[end] == '/' {
		authority = authority[:end]
	}
	return strings.TrimPrefix(authority[strings.LastIndexByte(authority, '@')+1:], "[")
}

// gitSchemes are those of URLs for which git has a program of its own. For another one it
// looks for git-remote-SCHEME.
var gitSchemes = []string{"https", "http", "ssh", "git", "git+ssh", "ssh+git", "ftp", "ftps"}

// insidePath returns the names of a path after its leading "..", or after the sandbox's
// /workspace. At most free leading ".." stay in the view. ok is false if the path may lead
// out of the view: after another name ".." could leave the target of a link.
func insidePath(path string, free int) (rest string, ok bool) {
	if in, workspace := strings.CutPrefix(path+"/", "/workspace/"); workspace {
		path, free = in, 0
	} else if strings.HasPrefix(path, "/") {
		return "", false
	}
	if strings.ContainsFunc(path, unicode.IsControl) {
		return "", false
	}
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
		case "..":
			if free--; len(names) > 0 || free < 0 {
				return "", false
			}
		default:
			names = append(names, name)
		}
	}
	return strings.Join(names, "/"), true
}

const (
	lower        = "abcdefghijklmnopqrstuvwxyz"
	alphanumeric = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

var errOddConfig = errors.New("is in no form that git writes")

func parseGitConfig(text []byte) (all []gitSetting, err error) {
	odd := func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' || r == 0xfeff }
	if bytes.ContainsFunc(text, odd) {
		return nil, errors.New("holds a control character or a byte order mark")
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
	sub, err := unquoteGit(quoted[1:len(quoted)-1], nil)
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
	if s.implicit = !found; s.implicit {
		return nil
	}
	value = strings.TrimLeft(value, " \t")
	if strings.HasPrefix(value, `"`) && len(value) > 1 && strings.HasSuffix(value, `"`) {
		value = value[1 : len(value)-1]
	} else if strings.ContainsAny(value, "#;") { // a comment, or text that git would have quoted
		return errOddConfig
	}
	var err error
	s.value, err = unquoteGit(value, gitEscapes)
	return err
}

// gitEscapes are the escapes of a value besides \\ and \".
var gitEscapes = map[byte]byte{'n': '\n', 't': '\t', 'b': '\b'}

// unquoteGit replaces \\, \" and the escapes in more. It fails at quotes that are not
// escaped and at other escapes.
func unquoteGit(text string, more map[byte]byte) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch c {
		case '"':
			return "", errOddConfig
		case '\\':
			if i++; i == len(text) {
				return "", errOddConfig
			}
			if c = text[i]; c != '\\' && c != '"' {
				var known bool
				if c, known = more[c]; !known {
					return "", errOddConfig
				}
			}
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}
