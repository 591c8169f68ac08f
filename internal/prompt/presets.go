package prompt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/tools"
)

// suggests are the files of a project that suggest a preset.
var suggests = []struct{ file, preset string }{
	{"package.json", "npm"}, {"go.mod", "go"}, {"pyproject.toml", "pypi"}, {"requirements.txt", "pypi"}, {"Cargo.toml", "crates"},
}

// suggested returns the presets that the files of a project suggest, and these files. What the files say is not read.
func suggested(dir string) (presets, files []string) {
	for _, s := range suggests {
		if info, err := os.Lstat(filepath.Join(dir, s.file)); err == nil && info.Mode().IsRegular() {
			files = append(files, s.file)
			if !slices.Contains(presets, s.preset) {
				presets = append(presets, s.preset)
			}
		}
	}
	return presets, files
}

// Presets offers the presets that the files of a project suggest: call it when the project's definition was made, which
// remembers the answer. It asks the user on a terminal; without one it returns a line with the command. A project with a
// .scopefs.yaml names its own.
func Presets(ctx context.Context, p config.Paths, project *config.Project, stdin io.Reader, stderr io.Writer) (note string, err error) {
	presets, files := suggested(project.Dir)
	if t, err := config.TrustOf(*project); len(presets) == 0 || err != nil || t.Hash != "" {
		return "", nil
	}
	ask := question.Asker(stdin, stderr)
	if ask == nil {
		command := report.Elsewhere(project, append([]string{"scopefs", "allow"}, presets...)...)
		return fmt.Sprintf("%s: the network allows no registry of packages: %s", strings.Join(files, ", "), command), nil
	}
	answer, err := ask(ctx, tools.Question{
		Text:    fmt.Sprintf("scopefs: this project has %s: allow its programs to read from %s (scopefs presets show %s)?", strings.Join(files, ", "), strings.Join(presets, ", "), presets[0]),
		Options: []string{"yes", "no"},
	})
	if err == nil && answer.Text == "yes" {
		err = amend.AddPresets(p, project, presets)
	}
	return "", err
}

// Consent asks a question on the terminal. The error says that nothing was changed.
func Consent(ctx context.Context, text string, stdin io.Reader, stderr io.Writer) error {
	ask := question.Asker(stdin, stderr)
	if ask == nil {
		return exit.Usagef("nothing was changed: there is no terminal to ask on: give --yes")
	}
	answer, err := ask(ctx, tools.Question{Text: text, Options: []string{"yes", "no"}})
	if err == nil && answer.Text != "yes" {
		err = errors.New("nothing was changed")
	}
	return err
}
