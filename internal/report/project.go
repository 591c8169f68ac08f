package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/scope/widening"
)

// Place returns a line if the project of a command is not that of its working directory.
func Place(p *config.Project) string {
	if p.Below == "" {
		return ""
	}
	return fmt.Sprintf("the agent is that of %s, which holds this directory: for one of %s alone, give its whole path to --dir",
		printable.Text(p.Dir), printable.Text(p.Below))
}

// Apart returns lines about a project that is to be made below another one: what its agent may do there beyond that one's.
func Apart(p *config.Project) (string, error) {
	wider, err := beyond(p)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("this makes another agent, for %s: for that of %s, give %s", printable.Text(p.Dir), printable.Text(p.Above.Dir),
		cmp.Or(printable.Command("--dir", p.Above.Dir), "its directory"))
	if len(wider) > 0 {
		text += "\n  it may do more than that agent may in it:"
	}
	for _, e := range wider {
		text += "\n    " + printable.Text(e.String())
	}
	return text, nil
}

// beyond returns what the agent that is to be made for a project may do there, and the agent of the project above may not.
func beyond(p *config.Project) (all []excess.Excess, err error) {
	above := p.Above
	if above.Before != nil && !above.Exists() { // made anew, where the restrictions of the one before hold
		above = above.Before
	}
	at, err := config.Paths{Base: above.Base}.Complete()
	if err != nil {
		return nil, err
	}
	known := definitions.Read(at, nil)
	was, err := known.Agent(above.ID)
	if err != nil {
		return nil, fmt.Errorf("%w: correct it, for its rules may not hold for a new agent", err)
	}
	// It has the user's lists and presets. Those of the one above are compared with the rules that they make.
	host, err := definitions.Host(config.Paths{Base: p.Base, User: at.User})
	if err != nil {
		return nil, err
	}
	blank, errs := agents.New(p.Base, host.Host)
	now, wrong, _ := blank.Try(p.Definition(), []byte(p.Text(true)))
	if now == nil {
		return nil, errors.Join(append(errs, wrong...)...)
	}
	for _, key := range slices.Sorted(maps.Keys(known.Host.From)) {
		if known.Host.From[key].File == paths.HostFile {
			all = append(all, excess.Excess{Key: paths.HostFile, What: key + " is of that agent alone, and was not compared", Undecided: true})
		}
	}
	return append(widening.Of(now, was.Below(above.Dir, p.Dir)), all...), nil
}

// Renewed returns a line about a project that was made now, if another directory was at its path.
func Renewed(made *config.Project) string {
	if made.Before == nil {
		return ""
	}
	return fmt.Sprintf("%s was made anew: its agent has the restrictions of the one before, %s, and nothing else of it. "+
		"scopefs audit --agent %[2]s, changes %[2]s and diff %[2]s show what that one did and holds", printable.Text(made.Dir), made.Before.ID)
}

// Worktree returns a line about a project that was made now and is a linked worktree of git.
func Worktree(made *config.Project) string {
	switch w, err := paths.WorktreeOf(made.Dir); {
	case err != nil:
		return fmt.Sprintf("%s: git works there only with its repository, and the agent does not get that: %s", printable.Text(made.Dir), printable.Text(err.Error()))
	case w != nil:
		return fmt.Sprintf("%s is a worktree of %s: git inside has that, as the root of the definition says",
			printable.Text(made.Dir), printable.Text(w.Common))
	}
	return ""
}

// Owner returns a line if the directory of a new project belongs to another user, who may have rules for agents there.
func Owner(made *config.Project) string {
	st, err := os.Stat(made.Dir)
	if err != nil {
		return "" // the run says why it does not start
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if uid == os.Geteuid() {
		return ""
	}
	return fmt.Sprintf("%s is of user %d: the agent has the rules of %s, and none that this user has written", printable.Text(made.Dir), uid,
		printable.Text(filepath.Join(made.Base, "agents.d", string(made.ID)+".md")))
}

// Secrets returns a line if a project that was made now has secrets, or a template for them.
func Secrets(made *config.Project) string {
	const shown = 3
	hidden, dotenv := made.Secrets()
	names := make([]string, 0, shown)
	for _, name := range hidden[:min(len(hidden), shown)] {
		names = append(names, printable.Text(name))
	}
	text := strings.Join(names, ", ")
	switch more := len(hidden) - shown; {
	case len(hidden) == 0 && !dotenv:
		return ""
	case len(hidden) == 0:
		text = "a file .env would be"
	case more > 0:
		text += fmt.Sprintf(" and %d more are", more)
	case len(hidden) > 1:
		text += " are"
	default:
		text += " is"
	}
	return text + " sealed: the agent can read and create no .env, .env.*, *.pem or SSH key: --show-secrets changes that"
}

// ForRun returns a line about a run of a program that has presets beyond its definition.
func ForRun(project *config.Project, program string, presets []string) string {
	all := append([]string{"scopefs", "allow"}, presets...)
	return fmt.Sprintf("--for %s: this run may connect to the hosts of %s (scopefs presets show %s). To have that last: %s", program,
		strings.Join(presets, ", "), presets[0], Elsewhere(project, all...))
}

// Elsewhere returns a command about a project, which names its directory unless that is the working directory.
func Elsewhere(project *config.Project, words ...string) string {
	line := printable.Command(words...)
	if here, err := os.Getwd(); err != nil || here != project.Dir {
		words = append(words, "--dir", project.Dir)
	}
	return cmp.Or(printable.Command(words...), line+" --dir DIR")
}

// Proposed returns a line if the repository of a project proposes what is not in force.
func Proposed(project *config.Project) string {
	command := Elsewhere(project, "scopefs", "trust")
	t, err := config.TrustOf(*project)
	var note string
	switch {
	case err == nil && !t.Waits():
		return ""
	case err == nil && t.Hash == "":
		note = "is gone, and what you trusted stays in force: " + command + " --revoke"
	case !project.InForce():
		note = "is not in force, because you have not trusted it: " + command
	default:
		note = "has changed since you trusted it: " + command
	}
	return agents.RepositoryFile + " " + printable.Text(note)
}
