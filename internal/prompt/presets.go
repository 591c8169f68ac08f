package prompt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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
	{"package.json", "npm"}, {"go.mod", "go"}, {"go.work", "go"}, {"pyproject.toml", "pypi"},
	{"requirements.txt", "pypi"}, {"Cargo.toml", "crates"},
}

// below are the directories of a repository of several projects where the files stand, in that order.
var below = []string{".", "*", "packages/*", "apps/*", "services/*", "libs/*", "crates/*"}

// suggested returns the presets that the files of a project suggest, and these files. What the files say is not read.
func suggested(dir string) (presets, files []string) {
	for _, s := range suggests {
		if file := firstOf(dir, s.file); file != "" && !slices.Contains(presets, s.preset) {
			presets, files = append(presets, s.preset), append(files, file)
		}
	}
	return presets, files
}

// firstOf returns the first file of a name, at the top of a directory or below; "": there is none. It reads no file, and
// follows no link.
func firstOf(dir, name string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for _, at := range below {
		found, _ := fs.Glob(os.DirFS(dir), path.Join(at, name)) // of a good pattern
		for _, file := range found {
			real, err := filepath.EvalSymlinks(filepath.Join(dir, file))
			if info, wrong := os.Lstat(real); err == nil && wrong == nil && info.Mode().IsRegular() && real == filepath.Join(dir, file) {
				return file
			}
		}
	}
	return ""
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
		Text: fmt.Sprintf(
			"scopefs: this project has %s: allow its programs to read from %s (scopefs presets show %s)?",
			strings.Join(files, ", "), strings.Join(presets, ", "), presets[0]),
		Options: []string{"yes", "no"},
	})
	if err == nil && answer.Text == "yes" {
		var written *amend.Draft
		if written, err = amend.AddPresets(p, project, presets); err == nil {
			err = report.Written(stderr, written)
		}
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
