// Package skill gives an agent the skills that its operator wrote: directories
// with a SKILL.md after the Agent Skills convention (agentskills.io), which is
// YAML frontmatter with name and description, and instructions in Markdown. They
// are outside every view, and read anew at each call.
package skill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

const (
	maxText        = 256 << 10 // bytes of a file
	maxSkills      = 500       // listed
	maxFiles       = 200       // listed of one skill
	maxDescription = 1024      // characters, the convention's own bound
)

// args is what skill is asked.
type args struct {
	Name string `json:"name,omitempty" jsonschema:"the skill; without it the skills there are are listed" limit:"len=64"`
	File string `json:"file,omitempty" jsonschema:"a further file of the skill, relative to it; default SKILL.md" limit:"len=1024"`
}

// Subject is the skill, and the file of it.
func (in args) Subject() (rel, target string) { return "", path.Join(in.Name, in.File) }

// result is a list of skills, or one file of one.
type result struct {
	Skills    []entry  `json:"skills,omitempty" limit:"items=500"`
	Name      string   `json:"name,omitempty"`
	Text      string   `json:"text,omitempty" limit:"len=262144"`
	Files     []string `json:"files,omitempty" limit:"items=200" jsonschema:"what else the skill has, for the argument file"`
	Truncated bool     `json:"truncated,omitempty" jsonschema:"there is more than is shown"`
}

// entry is one skill of a list.
type entry struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Content is the text of the file, or a line a skill.
func (o result) Content() []tools.Content {
	var b strings.Builder
	b.WriteString(o.Text)
	if o.Name == "" && len(o.Skills) == 0 {
		b.WriteString("There are no skills.")
	}
	for _, s := range o.Skills {
		fmt.Fprintf(&b, "%s: %s\n", s.Name, s.Description)
	}
	if o.Truncated {
		b.WriteString("\n[cut: there is more]")
	}
	if len(o.Files) > 0 {
		fmt.Fprintf(&b, "\n\nFiles of this skill: %s\n", strings.Join(o.Files, ", "))
	}
	return []tools.Content{{Text: b.String()}}
}

// New returns the tool skill, for the skills in dir. names says which the agent
// may use now, decide whether it may use one. What it may not use is not there.
func New(dir string, names func() []string, decide func(name string) scope.Decision) ([]tools.Tool, error) {
	s := skills{dir, names, decide}
	t, err := tools.New("skill",
		"Read a skill: instructions for a kind of task, written by the operator. Without a name it lists the skills and when to use each.",
		tools.Hints{Title: "Skills", Idempotent: true}, s.call)
	return []tools.Tool{t}, err
}

type skills struct {
	dir    string
	names  func() []string
	decide func(name string) scope.Decision
}

func (s skills) call(_ context.Context, _ tools.Env, in args) (result, error) {
	switch {
	case in.Name != "":
		return s.read(in)
	case in.File != "":
		return result{}, tools.Errorf(tools.Invalid, "a file of which skill: name is missing")
	}
	return s.list()
}

func (s skills) list() (out result, err error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(s.names()))) {
		if !s.decide(name).Allow {
			continue
		}
		text, _, err := readFile(s.dir, name, main)
		if absent(err) {
			continue
		} else if err != nil {
			return out, err
		}
		if len(out.Skills) == maxSkills {
			out.Truncated = true
			break
		}
		out.Skills = append(out.Skills, entry{name, description(text)})
	}
	return out, nil
}

// read reads one file. Whether a skill is forbidden or is not, the answer is
// the same.
func (s skills) read(in args) (out result, err error) {
	may := s.decide(in.Name)
	if !fs.ValidPath(in.Name) || strings.Contains(in.Name, "/") || in.Name == "." || !may.Allow {
		return out, notFound(in, may)
	}
	file := in.File
	if file == "" {
		file = main
	}
	if !fs.ValidPath(file) || file == "." {
		e := tools.Errorf(tools.Invalid, "file is relative to the skill, without '..'")
		e.Path = file
		return out, e
	}
	text, more, err := readFile(s.dir, in.Name, file)
	if absent(err) {
		if _, _, err := readFile(s.dir, in.Name, main); file != main && err == nil {
			e := tools.Errorf(tools.NotFound, "the skill %q has no file %q", in.Name, file)
			e.Hint = "without file, SKILL.md is shown with a list of the others"
			return out, e
		}
		return out, notFound(in, may)
	} else if err != nil {
		return out, err
	}
	if more {
		text = text[:whole(text)]
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return out, tools.Errorf(tools.Invalid, "the file %q of the skill %q is no text", file, in.Name)
	}
	out = result{Name: in.Name, Text: text, Truncated: more}
	if file == main {
		out.Files, err = files(s.dir, in.Name)
	}
	return out, err
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func notFound(in args, may scope.Decision) error {
	e := tools.Errorf(tools.NotFound, "no skill %q", in.Name)
	if !may.Allow {
		e = tools.Refused(may, tools.NotFound, "no skill %q", in.Name)
	}
	e.Hint = "without a name, the skills there are are listed"
	return e
}

// whole returns the length of s without a character that was cut at its end.
func whole(s string) int {
	for n := len(s); n > 0 && n > len(s)-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n-1]) {
			if utf8.FullRuneInString(s[n-1:]) {
				return len(s)
			}
			return n - 1
		}
	}
	return len(s)
}
