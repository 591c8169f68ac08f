package prompt

import (
	"context"
	"io"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/terminal/question"
	"github.com/scopefs/scopefs/tools"
)

// Apart asks the user on a terminal whether to make a project below another one, whose rules do not hold for it: call it before
// the project is made. Without a terminal it returns what it would show.
func Apart(ctx context.Context, project *config.Project, stdin io.Reader, stderr io.Writer) (note string, err error) {
	text, err := report.Apart(project)
	ask := question.Asker(stdin, stderr)
	if err != nil || ask == nil {
		return text, err
	}
	answer, err := ask(ctx, tools.Question{Text: "scopefs: " + text + "\nmake it?", Options: []string{"yes", "no"}})
	if err == nil && answer.Text != "yes" {
		err = exit.Usagef("--dir: no agent was made for %s: --dir %s has that of the directory above", project.Dir, project.Above.Dir)
	}
	return "", err
}
