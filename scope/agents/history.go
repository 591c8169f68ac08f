package agents

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// History bounds what a view with ChangesKept keeps, and says where.
type History struct {
	Bytes   int64         `key:"size"` // of the history; 0 means Percent
	Percent float64       `key:"size"` // of the size of the file system, from 0 to 100; 0 with Bytes
	Age     time.Duration // what is older is removed
	Exclude []string      // globs, as in ViewSpec.Paths; the history does not keep a path that one matches
	Unkept  bool          // what the history cannot keep changes all the same; else the change is refused
	Dir     string        // absolute and clean; the history is in {Dir}/<name>. "" means {base}/history
}

// The default bounds of a history.
const (
	DefaultHistoryPercent = 10
	DefaultHistoryAge     = 30 * 24 * time.Hour
)

// minHistory is the least size of a history in bytes: some changes of a few files.
const minHistory = 1 << 20

func (h *History) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"size": h.sizeField,
		"age":  fields.Number(&h.Age, fields.ParseAge, "!!str"),
		"dir":  dirField(&h.Dir),
		"unkept": func(n *yaml.Node) error {
			var word string
			err := fields.OneOf(&word, "refuse", "allow")(n)
			h.Unkept = word == "allow"
			return err
		},
		"exclude": fields.Texts(&h.Exclude, "exclude", func(glob string) error {
			if err := (scope.PathRule{Pattern: glob, Access: scope.Write}).Check(); err != nil {
				return fmt.Errorf("pattern %q: %w", glob, err)
			}
			return nil
		}),
	}
}

// sizeField reads bytes, or a part of the file system such as 10%.
func (h *History) sizeField(n *yaml.Node) error {
	s, err := fields.Scalar(n, "a size such as 5GiB or 10%", "!!int", "!!str")
	if err != nil {
		return err
	}
	part, ok := strings.CutSuffix(s, "%")
	if !ok {
		h.Percent = 0
		if h.Bytes, err = fields.ParseSize(s); err == nil && h.Bytes < minHistory {
			err = fmt.Errorf("%q is too little for a history: want 1MiB or more", s)
		}
		return err
	}
	h.Percent, err = strconv.ParseFloat(part, 64)
	if err != nil || !(h.Percent > 0 && h.Percent <= 100) {
		return fmt.Errorf("%q is no part of a file system: write one such as 10%%", s)
	}
	return nil
}

func changesField(out *Changes) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.OneOf(out, direct, ChangesKept, ChangesHeld, ChangesAuto)(n); err != nil {
			return err
		}
		if *out == direct {
			*out = ChangesDirect
		}
		return nil
	}
}

// tasksField reads the key changes of delegate.
func tasksField(out *Changes) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.OneOf(out, direct, ChangesHeld)(n); err != nil {
			return err
		}
		if *out == direct {
			*out = ChangesDirect
		}
		return nil
	}
}

// kept reports whether a view keeps changes, if it can.
func (c Changes) kept() bool { return c == ChangesKept || c == ChangesAuto }

// What the tools about an agent's changes need.
const (
	needKept   = "write view: {changes: kept}"
	needHeld   = "write view: {changes: held}"
	needCommit = "write policy: {commit: ask}"
	needTasks  = "write delegate: {changes: held}"
)

// checkKept returns an error for a tool that the agent cannot have because its view keeps or holds no changes. A pattern of
// several tools grants the others.
func (d *Definition) checkKept(r catalog.Ref, tools catalog.Tools) error {
	if r.Kind != catalog.ToolRef || r.Key != "tools" && r.Key != "policy.tools.allowed" {
		return nil
	}
	p, err := tools.ParsePattern(r.Text)
	if err != nil {
		return nil
	}
	held, tasks := d.View.Changes == ChangesHeld, d.Tasks == ChangesHeld
	switch listed := tools.Named(p.Name).Listed; {
	case listed == catalog.ListedKept && !d.View.Changes.kept(), listed == catalog.ListedUndo && !d.View.Changes.kept() && !held:
		return fmt.Errorf("%s: %s needs the history of the agent's changes: %s, or remove it", r.Key, p.Name, needKept)
	case (listed == catalog.ListedHeld || listed == catalog.ListedCommit) && !held && !tasks:
		return fmt.Errorf("%s: %s needs changes that are held: %s, or remove it", r.Key, p.Name, needHeld)
	case listed == catalog.ListedTask && !tasks:
		return fmt.Errorf("%s: %s needs tasks whose changes are held: %s, or remove it", r.Key, p.Name, needTasks)
	case listed == catalog.ListedCommit && d.Rules.Commit == CommitNever && !tasks:
		return fmt.Errorf("%s: %s needs the operator's word: %s or {commit: allow}, or remove it", r.Key, p.Name, needCommit)
	}
	return nil
}

// changesRule adds to d what denies a tool about changes that the agent does not have, and returns the rule of policy.commit.
func (g *Grants) changesRule(d *denial, tool catalog.Tool) Commit {
	held, tasks := g.changes == ChangesHeld, g.reach.Tasks == ChangesHeld
	switch tool.Listed {
	case catalog.ListedKept, catalog.ListedUndo:
		if !g.changes.kept() && (!held || tool.Listed != catalog.ListedUndo) {
			d.add(scope.KindTool, "changes: direct", needKept)
		}
	case catalog.ListedHeld, catalog.ListedCommit:
		if !held && !tasks {
			d.add(scope.KindTool, "changes: not held", needHeld)
		}
		if tool.Listed == catalog.ListedCommit {
			if g.reach.Rules.Commit == CommitNever && !tasks {
				d.add(scope.KindTool, "no policy.commit", needCommit)
			}
			return g.reach.Rules.Commit
		}
	case catalog.ListedTask:
		if !tasks {
			d.add(scope.KindTool, "changes: of no task", needTasks)
		}
	}
	return CommitNever
}

// checkChanges returns an error for changes that no view can keep or hold. A view with identity: caller acts as any user, and its
// history would hold files of all of them.
func (d *Definition) checkChanges() error {
	if d.View.Changes != ChangesDirect && d.Identity == IdentityCaller {
		return fmt.Errorf("changes: %s needs identity: agent: remove identity, or write changes: direct", d.View.Changes)
	}
	switch tasks := d.Tasks == ChangesHeld; {
	case tasks && d.Identity == IdentityCaller:
		return errors.New("delegate: changes: held needs identity: agent: remove identity, or write delegate: {changes: direct}")
	case tasks && d.View.Changes == ChangesHeld:
		return errors.New("delegate: changes: held needs a view whose own changes are not held, because a branch has no branches: " +
			"write view: {changes: kept}, or delegate: {changes: direct}")
	case d.Rules.Commit != CommitNever && d.View.Changes != ChangesHeld && !tasks:
		return fmt.Errorf("policy.commit: %s needs changes that are held: %s, or remove it", d.Rules.Commit, needHeld)
	}
	return nil
}
