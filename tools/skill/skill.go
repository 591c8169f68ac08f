// Package skill provides the tool that reads the operator's skills. A skill is a
// directory with a SKILL.md in the Agent Skills format (agentskills.io): YAML
// frontmatter with name and description, then instructions in Markdown. Skills are
// outside every view. Each call reads them from disk again.
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
	maxText        = 256 << 10 // bytes returned of a file
	maxSkills      = 500       // skills in a list
	maxFiles       = 200       // files listed of one skill
	maxDescription = 1024      // characters; the limit of the Agent Skills format
)

// args are the arguments of the tool.
type args struct {
	Name string `json:"name,omitempty" jsonschema:"the skill; omit it to list all skills" limit:"len=64"`
	File string `json:"file,omitempty" jsonschema:"a file of the skill, relative to its directory; default SKILL.md" limit:"len=1024"`
}

// Subject returns the skill and its file as the target.
func (in args) Subject() (rel, target string) { return "", path.Join(in.Name, in.File) }

// result is a list of skills, or one file of a skill.
type result struct {
	Skills    []entry  `json:"skills,omitempty" limit:"items=500"`
	Name      string   `json:"name,omitempty"`
	Text      string   `json:"text,omitempty" limit:"len=262144"`
	Files     []string `json:"files,omitempty" limit:"items=200" jsonschema:"other files of the skill, for the argument file"`
	Truncated bool     `json:"truncated,omitempty" jsonschema:"the text or the list is cut"`
}

// entry is a skill in a list.
type entry struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Content returns the text of the file, or one line per skill.
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

// New returns the tool skill for the skills in dir. names returns the skills that
// the agent may use now, and decide decides about one name. The tool answers "no
// skill" alike for a missing skill and for one that decide denies.
func New(dir string, names func() []string, decide func(name string) scope.Decision) ([]tools.Tool, error) {
	s := skills{dir, names, decide}
	t, err := tools.New("skill",
		"Read a skill: instructions for a kind of task, written by the operator. Without a name it lists the skills and when to use each.",
		tools.Hints{Title: "Skills", Idempotent: true}, s.call)
	t.Idle = func() bool {
		return !slices.ContainsFunc(names(), func(name string) bool { return decide(name).Allow })
	}
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
		return result{}, tools.Errorf(tools.Invalid, "file without name: give the skill's name")
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

// read returns one file of a skill.
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
		e := tools.Errorf(tools.Invalid, "invalid file: want a path relative to the skill, without '..'")
		e.Path = file
		return out, e
	}
	text, more, err := readFile(s.dir, in.Name, file)
	if absent(err) {
		if _, _, err := readFile(s.dir, in.Name, main); file != main && err == nil {
			return out, tools.Errorf(tools.NotFound, "the skill %q has no file %q", in.Name, file).
				Suggest("omit file to read SKILL.md and list the other files")
		}
		return out, notFound(in, may)
	} else if err != nil {
		return out, err
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return out, tools.Errorf(tools.Invalid, "the file %q of the skill %q is not UTF-8 text", file, in.Name)
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
	e.Hint = "omit name to list all skills"
	return e
}
