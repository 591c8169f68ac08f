package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// kept is an agent with a history or a branch, and the words of the command line after it.
type kept struct {
	paths   config.Paths
	id      scope.ID
	words   []string
	named   bool     // the words began with an agent
	layer   scope.ID // the branch or agent that has the changes, of a root its agent; "": see layersOf
	def     *agents.Agent
	held    bool         // what rules hold is meant
	flags   agents.Flags // by which its history is read; zero: the definition's
	settled *audit.Event // of lastHeld: the commit or discard after which the layer holds nothing
	below   string       // where in the project the command works; absolute: beside it
}

// history returns a client of the agent's history, or of what rules hold.
func (k kept) history(c *api.Client) *api.History {
	if k.held {
		return c.HeldOf(k.id)
	}
	return c.HistoryOf(k.id)
}

// exists reports whether there may be a file.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// changedBy returns an agent, or the layer of it that holds the changes that o selects: see lastHeld.
func (a *app) changedBy(ctx context.Context, k kept, o *selectOptions) (_ kept, err error) {
	var l *kept
	switch {
	case k.def.View.Changes == agents.ChangesHeld:
	case o.last():
		l, err = a.lastHeld(ctx, k)
	case a.Branch == "" && !k.named && (o.session != "" || o.calls != nil):
		l, err = o.heldBy(ctx, k)
	}
	if err != nil || l == nil {
		return k, err
	}
	l.words = k.words
	return *l, nil
}

// heldBy returns the layer in which the session or the calls of the flags have worked; nil: none.
func (o *selectOptions) heldBy(ctx context.Context, k kept) (*kept, error) {
	all, err := layersOf(k)
	if err != nil {
		return nil, err
	}
	e, err := report.LastEvent(ctx, k.paths.Audit(), func(e *audit.Event) bool {
		return o.session != "" && e.Session == o.session || e.Call != "" && slices.Contains(o.calls, e.Call)
	})
	for _, l := range all {
		if string(l.id) == e.Agent && l.def.View.Changes == agents.ChangesHeld {
			return &l, err
		}
	}
	return nil, err
}

// keeps returns an error for an agent whose changes are not kept.
func (k kept) keeps() error {
	if k.def.View.Changes == agents.ChangesDirect {
		return fmt.Errorf("%s keeps nothing of what its changes destroy: write view: {changes: kept} into %s, for the changes from then on",
			k.id, k.def.Path(k.paths.Base))
	}
	return nil
}

// agentWith returns the agent of a command line. In a project the first word names an agent only if it is defined there.
func (a *app) agentWith(ctx context.Context, words []string) (kept, error) {
	if a.ofNone(words) {
		return kept{}, a.whichAgent(ctx)
	}
	if _, project, err := a.where(); len(words) > 0 && (err != nil || project == nil || replaces(project, words[0])) {
		if err := a.find(words[0]); err != nil {
			return kept{}, err
		}
	}
	p, project, err := a.existing()
	if err != nil {
		return kept{}, err
	}
	name, named := "", false
	switch {
	case len(words) == 0:
	case project == nil:
		name, words, named = words[0], words[1:], true
	case words[0] == string(project.ID), project.Named(words[0]) && !exists(filepath.Join(project.Dir, project.Below, words[0])):
		words, named = words[1:], words[0] == string(project.ID)
	case a.Dir == "":
		if id, err := scope.ParseID(words[0]); err == nil {
			if _, err := definitions.Agent(p, id); !errors.Is(err, api.ErrUnknown) {
				name, words, named = words[0], words[1:], true
			}
		}
	}
	id, err := a.agentIn(p, project, name)
	if err != nil {
		return kept{}, err
	}
	def, err := definitions.Agent(p, id)
	if err != nil {
		return kept{}, err
	}
	k := kept{paths: p, id: id, words: words, named: named, def: def}
	if wd, err := os.Getwd(); err == nil && project != nil {
		k.below, _ = strings.CutPrefix(paths.Real(wd), project.Dir+"/")
	}
	return k, nil
}

// replaces reports whether a name is the id of the project whose directory was at the path of this one before.
func replaces(project *config.Project, name string) bool {
	all, _ := paths.Finder{DirOf: agents.DirOf}.Projects(name) // another command says what is wrong
	return len(all) == 1 && all[0].Gone && string(all[0].ID) == name && all[0].Dir == project.Dir
}

// elsewhere says where a PATH of a command was looked for that selects nothing, if that may not be meant.
func (a *app) elsewhere(k kept) {
	if len(k.words) > 0 && k.below != "" && !path.IsAbs(k.below) && !path.IsAbs(k.words[0]) {
		fmt.Fprintf(a.progress.Before(a.err), "scopefs: PATH is relative to the project's directory: did you mean %s?\n",
			printable.Text(path.Join(k.below, k.words[0])))
	}
}

// opened returns a client of the history that a daemon of another command has open; nil if none has.
func (k kept) opened(ctx context.Context) *api.History {
	for _, p := range embedded.Running(k.paths) {
		h := k.history(api.NewClient(p))
		if _, _, err := h.Progress(ctx); err == nil {
			return h
		}
	}
	return nil
}

// flagged has the flags hold by which the agent's changes are held, if that is not its definition, until end is called.
func (a *app) flagged(ctx context.Context, k kept) (_ kept, end func(), err error) {
	if k.flags == (agents.Flags{}) {
		return k, func() {}, nil
	}
	k.paths, end, _, err = a.hold(ctx, k.paths, k.id, k.id, k.flags)
	return k, end, err
}

// with calls f with a client of an agent's history: see open.
func (a *app) with(ctx context.Context, k kept, f func(context.Context, *api.History) error) error {
	return a.open(ctx, directories{{kept: k}}, func(ctx context.Context, all directories) error { return f(ctx, all[0].h) })
}

// selectOptions are the flags that select changes.
type selectOptions struct {
	calls               []string
	session, checkpoint string
	since               string
}

func (o *selectOptions) addFlags(c *cobra.Command) {
	c.Flags().StringSliceVar(&o.calls, "call", nil, "those of a tool call: its id")
	c.Flags().StringVar(&o.session, "session", "", "those of a session: its id, or last")
	c.Flags().StringVar(&o.since, "since", "", "those from then on: a duration such as 2h, or a time")
	c.Flags().StringVar(&o.checkpoint, "checkpoint", "", "those after a checkpoint: its name or id")
}

// oneOf returns an error if more than one of some flags is given.
func oneOf(c *cobra.Command, names ...string) error {
	given := ""
	for _, name := range names {
		switch {
		case !c.Flags().Changed(name):
		case given != "":
			return exit.Usagef("--%s and --%s: give one of them", given, name)
		default:
			given = name
		}
	}
	return nil
}

// none reports whether no flag selects changes.
func (o *selectOptions) none() bool {
	return o.calls == nil && o.session == "" && o.since == "" && o.checkpoint == ""
}

// last reports whether the changes are those of the last session.
func (o *selectOptions) last() bool {
	return o.calls == nil && o.since == "" && o.checkpoint == "" && (o.session == "" || o.session == "last")
}

// selection returns the selection of the flags of c, and its description.
func (o *selectOptions) selection(c *cobra.Command) (sel history.Selection, of string, err error) {
	if err := oneOf(c, "call", "session", "since", "checkpoint"); err != nil {
		return sel, "", err
	}
	of = "the last session"
	switch {
	case o.calls != nil:
		sel.Calls, of = o.calls, "call "+strings.Join(o.calls, ", ")
	case o.session != "" && o.session != "last":
		sel.Session, of = o.session, "session "+o.session
	case o.since != "":
		if sel.Since, err = report.Since(o.since, time.Now()); err != nil {
			return sel, "", exit.With(exit.Usage, err)
		}
		of = "since " + sel.Since.Local().Format(time.DateTime)
	case o.checkpoint != "":
		sel.Checkpoint, of = o.checkpoint, "since checkpoint "+o.checkpoint
	}
	return sel, of, nil
}

// relOf returns a path of the view, relative to its root.
func relOf(word string) (string, error) {
	rel := word
	if path.IsAbs(word) {
		var ok bool
		if rel, ok = strings.CutPrefix(path.Clean(word)+"/", "/workspace/"); !ok {
			return "", exit.Usagef("%q: want a path of the view, such as src or /workspace/src", word)
		}
	}
	rel = path.Clean(rel)
	if rel == ".." || strings.HasPrefix(rel, "../") || word == "" {
		return "", exit.Usagef("%q: want a path of the view, such as src or /workspace/src", word)
	}
	if rel == "." {
		rel = ""
	}
	return rel, nil
}
